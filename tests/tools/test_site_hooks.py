"""tools/site_hooks.py: the tables of the documentation have every option, and links work."""

import io
import re
from types import SimpleNamespace

import pytest
from conftest import ROOT, load_script
from mkdocs.exceptions import PluginError

from fairseq_lxsr.cli.main import VERBS
from fairseq_lxsr.recipes import names

DOCS = ROOT / "docs"
hooks = load_script(ROOT / "tools" / "site_hooks.py")
# The kinds and names of all tasks, criterions and models with options.
CONFIGS = [(kind, name) for kind, configs in hooks.registries().items() for name in configs]
PAGE = SimpleNamespace(file=SimpleNamespace(src_uri="training.md"))


def rendered(text: str, repo_url: str = "") -> str:
    return hooks.on_page_markdown(
        text, PAGE, SimpleNamespace(docs_dir=str(DOCS), repo_url=repo_url), None
    )


@pytest.mark.parametrize(("kind", "name"), CONFIGS)
def test_every_training_option_is_documented_once_with_its_meaning(kind, name):
    page = (DOCS / "training-options.md").read_text(encoding="utf-8")
    markers = [f"<!-- table: {kind} {name} -->"]
    if name == "xling_sent":
        markers.append("<!-- table: terms -->")
    tables = "\n".join(rendered(marker) for marker in markers if marker in page)
    for option in hooks.options_of(hooks.registries()[kind][name]):
        assert tables.count(f"| `{option.option_strings[0]}` |") == 1
        assert option.help, f"{option.option_strings[0]} has no help"


@pytest.mark.parametrize("name", [name for kind, name in CONFIGS if kind == "model"])
def test_every_preset_is_documented(name):
    marker = f"<!-- table: presets {name} -->"
    assert marker in (DOCS / "training-options.md").read_text(encoding="utf-8")
    assert len(rendered(marker).splitlines()) >= 4


def test_every_verb_is_documented():
    page = rendered("<!-- table: verbs -->")
    for verb in VERBS:
        assert f"## `lxsr {verb}`\n" in page
        assert f"usage: lxsr {verb}" in page
    assert "### `lxsr eval xsr`" in page
    assert "| `--k N` | 4 | " in page
    assert "| `--output FILE.html` | DIR/report.html | " in page
    # Defaults are in their own column.
    assert "(default:" not in re.sub(r"\| `--data .*", "", page)


def test_every_recipe_is_documented():
    page = rendered("<!-- table: recipes -->")
    for name in names():
        assert f"| [`{name}`](#{name}) |" in page
    assert "--arch lxsr_best --objective none" in page
    assert "--adam-betas '(0.9, 0.98)'" in page


@pytest.mark.parametrize(
    ("name", "last_line"),
    [
        ("encoder", r"0\.\d\d El perro duerme\."),
        ("search", r"<CorpusIndex .*notes: flat index of 4 texts, with words, model \w{12}>"),
        ("evaluation", r"0\.0 % of the sentences do not find their translation"),
        ("clients", "2 3"),
    ],
)
def test_examples_of_the_api_run(name, last_line, capsys, monkeypatch):
    # The clients would send a request to a server.
    answer = io.BytesIO(b'{"data": [{"embedding": [0, 0, 1]}, {"embedding": [0, 1, 0]}]}')
    monkeypatch.setattr("urllib.request.urlopen", lambda request: answer)
    example = hooks.PUBLIC[name].example
    public, _ = hooks.api_pages()
    assert f"```python\n{example.strip()}\n```" in public[f"api/{name}.md"]
    exec(compile(example, name, "exec"), {})
    assert re.fullmatch(last_line, capsys.readouterr().out.splitlines()[-1])


def test_the_fields_of_a_configuration_file_are_documented_with_their_meaning():
    table = rendered("<!-- table: fields fairseq_lxsr.context.rounds.ContextConfig -->")
    assert "| `documents` | required | text file or folder" in table
    assert "| `rounds` | `3` |" in table
    table = rendered("<!-- table: fields fairseq_lxsr.preparation.config.PrepareConfig -->")
    assert "at most 5 % of the text" in table


def test_pages_of_the_public_api_have_the_modules_that_users_call():
    public, _ = hooks.api_pages()
    assert list(public) == [
        "api/encoder.md",
        "api/search.md",
        "api/vectors.md",
        "api/embeddings.md",
        "api/evaluation.md",
        "api/clients.md",
    ]
    text = "\n".join(public.values())
    for module in (
        "encoder",
        "search.corpus",
        "search.reranker",
        "vectors.mining",
        "evaluation.protocols.xsr",
    ):
        assert text.count(f"::: fairseq_lxsr.{module}\n") == 1


def test_every_module_is_on_one_page_of_the_api():
    public, internal = hooks.api_pages()
    text = "\n".join([*public.values(), *internal.values()])
    documented = re.findall(r"^::: (\S+)", text, re.M)
    assert len(documented) == len(set(documented))
    for modules in hooks.rooms().values():
        assert set(modules) <= set(documented)


@pytest.mark.parametrize(
    ("host", "repo_url", "repo_name"),
    [
        ("repository.invalid", "", None),
        ("example.org", "https://example.org/house", "Repository"),
    ],
)
def test_the_site_links_to_the_repository_if_its_address_is_filled_in(
    monkeypatch, tmp_path, host, repo_url, repo_name
):
    pyproject = tmp_path / "pyproject.toml"
    pyproject.write_text(f'[project.urls]\nRepository = "https://{host}/house"\n')
    monkeypatch.setattr(hooks, "PYPROJECT", pyproject)
    config = hooks.on_config(SimpleNamespace(nav=[], repo_url="", repo_name=None))
    assert config.repo_url == repo_url
    assert config.repo_name == repo_name
    assert [list(part) for part in config.nav] == [["Reference of Python"]]


def test_links_to_files_of_the_repository_become_paths_or_addresses():
    assert rendered("[a](laser.md#x)") == "[a](laser.md#x)"
    link = "[results](../benchmarks/speed/train.py)"
    assert rendered(link) == "results (`benchmarks/speed/train.py`)"
    link = "[`benchmarks/speed/train.py`](../benchmarks/speed/train.py)"
    assert rendered(link) == "`benchmarks/speed/train.py`"
    address = "https://example.org/house"
    assert rendered("[how](../Makefile)", address) == f"[how]({address}/blob/main/Makefile)"
    with pytest.raises(PluginError, match=re.escape("../nowhere.md")):
        rendered("[a](../nowhere.md)")


def test_pages_that_load_files_from_other_hosts_are_refused():
    for tag in (
        '<script src="https://cdn.example/x.js"></script>',
        '<link rel="stylesheet" href="//cdn.example/x.css">',
        '<img alt="a" src="http://example.org/a.png">',
    ):
        with pytest.raises(PluginError, match=r"training\.md"):
            hooks.on_post_page(tag, PAGE, None)


def test_pages_may_link_to_other_hosts():
    for tag in ('<a href="https://a.org">x</a>', '<link rel="canonical" href="https://a.org/">'):
        assert hooks.on_post_page(tag, PAGE, None) == tag


def test_llms_txt_lists_the_pages_with_their_first_sentences():
    def page(name, title, markdown, *ancestors):
        file = SimpleNamespace(src_uri=f"{name}.md", url=f"{name}.html")
        return SimpleNamespace(file=file, title=title, markdown=markdown, ancestors=ancestors)

    guides = SimpleNamespace(title="Guides")
    pages = [
        page("index", "Home", "# Home\n\n![a](b.svg)\n\nMakes [vectors](v.md) of\ntext. Fast.\n"),
        page("search", "Search", "1. A step\n\nType this:\n\n```sh\n```", guides),
        page("empty", "Empty", "# Empty", guides),
        page("api/internals/files", "files", "Modules.", guides),
    ]
    config = SimpleNamespace(site_url="https://a.org/", site_name="a", site_description="b")
    assert hooks.llms_text(pages, config) == (
        "# a\n\n> b\n\n## Pages\n\n- [Home](https://a.org/index.html): Makes vectors of text.\n\n"
        "## Guides\n\n- [Search](https://a.org/search.html): Type this\n"
        "- [Empty](https://a.org/empty.html)\n"
    )


def test_drawings_are_narrow_enough_for_a_phone():
    """Letters are 10 to 15 units high, and a phone is 360 pixels wide."""
    paths = list(DOCS.rglob("*.svg"))
    assert "architecture.svg" in {path.name for path in paths}
    for path in paths:
        view_box = re.search(r'viewBox="0 0 ([\d.]+) ', path.read_text("utf-8"))
        assert view_box, path
        assert float(view_box[1]) <= 400, path
