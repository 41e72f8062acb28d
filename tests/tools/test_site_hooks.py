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
CONFIGS = [(kind, name) for kind, configs in hooks.registries().items() for name in configs]
PAGE = SimpleNamespace(file=SimpleNamespace(src_uri="training.md"))


def rendered(text: str, repo_url: str = "") -> str:
    return hooks.on_page_markdown(
        text, PAGE, SimpleNamespace(docs_dir=str(DOCS), repo_url=repo_url), None
    )


@pytest.mark.parametrize(("kind", "name"), CONFIGS)
def test_every_training_option_is_documented(kind, name):
    """Each once, and each with its meaning."""
    page = (DOCS / "training-options.md").read_text(encoding="utf-8")
    markers = [
        f"<!-- table: {kind} {name} -->",
        *(["<!-- table: terms -->"] if name == "xling_sent" else []),
    ]
    tables = "\n".join(rendered(marker) for marker in markers if marker in page)
    for option in hooks.options_of(hooks.registries()[kind][name]):
        assert tables.count(f"| `{option.option_strings[0]}` |") == 1
        assert option.help, f"{option.option_strings[0]} has no help"


@pytest.mark.parametrize("name", [name for kind, name in CONFIGS if kind == "model"])
def test_every_preset_is_documented(name):
    marker = f"<!-- table: presets {name} -->"
    assert marker in (DOCS / "training-options.md").read_text(encoding="utf-8")
    assert len(rendered(marker).splitlines()) >= 4


def test_every_verb_and_every_recipe_is_documented():
    page = rendered("<!-- table: verbs -->")
    for verb in VERBS:
        assert f"## `lxsr {verb}`\n" in page
        assert f"usage: lxsr {verb}" in page
    assert "### `lxsr eval xsr`" in page
    assert "| `--k N` | 4 | " in page
    assert "| `--output FILE.html` | DIR/report.html | " in page
    assert "(default:" not in re.sub(r"\| `--data .*", "", page), "a default stands in its column"
    page = rendered("<!-- table: recipes -->")
    for name in names():
        assert f"| [`{name}`](#{name}) |" in page
    assert "--arch lxsr_best --objective none" in page
    assert "--adam-betas '(0.9, 0.98)'" in page


@pytest.mark.parametrize(
    ("name", "printed"),
    [
        ("encoder", r"0\.\d\d El perro duerme\."),
        ("search", r"<CorpusIndex .*notes: flat index of 4 texts, with words, model \w{12}>"),
        ("evaluation", r"0\.0 % of the sentences do not find their translation"),
        ("clients", "2 3"),
    ],
)
def test_examples_of_the_api_run(name, printed, capsys, monkeypatch):
    """The server of the last is a stand-in."""
    answer = io.BytesIO(b'{"data": [{"embedding": [0, 0, 1]}, {"embedding": [0, 1, 0]}]}')
    monkeypatch.setattr("urllib.request.urlopen", lambda request: answer)
    example = hooks.PUBLIC[name].example
    public, _ = hooks.api_pages()
    assert f"```python\n{example.strip()}\n```" in public[f"api/{name}.md"]
    exec(compile(example, name, "exec"), {})
    assert re.fullmatch(printed, capsys.readouterr().out.splitlines()[-1])


def test_options_of_a_file_come_with_their_meaning():
    table = rendered("<!-- table: fields fairseq_lxsr.context.rounds.ContextConfig -->")
    assert "| `documents` | required | text file or folder" in table
    assert "| `rounds` | `3` |" in table
    assert "at most 5 % of the text" in rendered(
        "<!-- table: fields fairseq_lxsr.preparation.config.PrepareConfig -->"
    )


def test_what_users_call_comes_before_internals():
    """Each module stands on one page, and the pages of what users call have the names of the
    guides.
    """
    public, internal = hooks.api_pages()
    assert list(public) == [
        f"api/{name}.md"
        for name in ("encoder", "search", "vectors", "embeddings", "evaluation", "clients")
    ]
    for module in (
        "encoder",
        "search.corpus",
        "search.reranker",
        "vectors.mining",
        "evaluation.protocols.xsr",
    ):
        assert "\n".join(public.values()).count(f"::: fairseq_lxsr.{module}\n") == 1
    documented = re.findall(r"^::: (\S+)", "\n".join([*public.values(), *internal.values()]), re.M)
    assert len(documented) == len(set(documented))
    modules = {module for names in hooks.rooms().values() for module in names}
    assert modules <= set(documented)


@pytest.mark.parametrize(
    ("host", "address"),
    [("repository.invalid", ""), ("example.org", "https://example.org/house")],
)
def test_the_site_links_to_the_repository_once_it_has_an_address(
    monkeypatch, tmp_path, host, address
):
    (tmp_path / "pyproject.toml").write_text(
        f'[project.urls]\nRepository = "https://{host}/house"\n'
    )
    monkeypatch.setattr(hooks, "PYPROJECT", tmp_path / "pyproject.toml")
    config = hooks.on_config(SimpleNamespace(nav=[], repo_url="", repo_name=None))
    assert (config.repo_url, config.repo_name) == (address, "Repository" if address else None)
    assert [list(part) for part in config.nav] == [["Reference of Python"]]


def test_links_that_leave_the_site():
    assert rendered("[a](laser.md#x)") == "[a](laser.md#x)"
    assert (
        rendered("[results](../benchmarks/speed/train.py)")
        == "results (`benchmarks/speed/train.py`)"
    )
    assert (
        rendered("[`benchmarks/speed/train.py`](../benchmarks/speed/train.py)")
        == "`benchmarks/speed/train.py`"
    )
    address = "https://example.org/house"
    assert rendered("[how](../Makefile)", address) == f"[how]({address}/blob/main/Makefile)"
    with pytest.raises(PluginError, match=re.escape("../nowhere.md")):
        rendered("[a](../nowhere.md)")


@pytest.mark.parametrize(
    "tag",
    [
        '<script src="https://cdn.example/x.js"></script>',
        '<link rel="stylesheet" href="//cdn.example/x.css">',
        '<img alt="a" src="http://example.org/a.png">',
    ],
)
def test_pages_load_nothing_from_other_hosts(tag):
    for allowed in (
        '<a href="https://a.org">x</a>',
        '<link rel="canonical" href="https://a.org/">',
    ):
        assert hooks.on_post_page(allowed, PAGE, None) == allowed
    with pytest.raises(PluginError, match=r"training\.md"):
        hooks.on_post_page(tag, PAGE, None)


def test_programs_get_a_list_of_the_pages():
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


def test_drawings_are_legible_on_a_narrow_page():
    """Their letters have 10 to 15 units, and a phone shows 360 pixels of them."""
    sizes = {
        path.name: re.search(r'viewBox="0 0 ([\d.]+) ', path.read_text("utf-8"))
        for path in DOCS.rglob("*.svg")
    }
    assert "architecture.svg" in sizes
    for name, size in sizes.items():
        assert size, name
        assert float(size[1]) <= 400, name
