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
    # The hooks replace the markers of the page by tables.
    markers = [f"<!-- table: {kind} {name} -->"]
    if name == "xling_sent":
        markers.append("<!-- table: terms -->")
    tables = "\n".join(rendered(marker) for marker in markers if marker in page)

    for option in hooks.options_of(hooks.registries()[kind][name]):
        assert tables.count(f"| `{option.option_strings[0]}` |") == 1
        assert option.help, f"{option.option_strings[0]} has no help"


@pytest.mark.parametrize("name", [name for kind, name in CONFIGS if kind == "model"])
def test_the_presets_of_every_model_are_documented(name):
    marker = f"<!-- table: presets {name} -->"

    _, _, *rows = rendered(marker).strip().splitlines()

    assert marker in (DOCS / "training-options.md").read_text(encoding="utf-8")
    presets = [row.split(" | ")[0] for row in rows]
    assert len(presets) >= 2, "a model has at least a preset for tests and one for users"


@pytest.fixture(scope="module")
def page_of_verbs():
    return rendered("<!-- table: verbs -->")


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_is_documented_with_its_usage(page_of_verbs, verb):
    assert f"## `lxsr {verb}`\n" in page_of_verbs
    assert f"usage: lxsr {verb}" in page_of_verbs


def test_a_verb_of_a_verb_is_documented(page_of_verbs):
    assert "### `lxsr eval xsr`" in page_of_verbs


@pytest.mark.parametrize(
    ("verb", "option", "default"),
    [
        # argparse knows this default.
        ("mine", "--k N", "4"),
        # This one depends on the argument DIR, so only the help of the option says it.
        ("report", "--output FILE.html", "DIR/report.html"),
    ],
    ids=["of argparse", "in the help"],
)
def test_the_default_of_an_option_of_a_verb_is_in_its_column(page_of_verbs, verb, option, default):
    _, part_of_verb = page_of_verbs.split(f"## `lxsr {verb}`\n")
    part_of_verb, *_ = part_of_verb.split("\n## ")

    assert f"| `{option}` | {default} | " in part_of_verb


def test_the_default_of_an_option_of_a_verb_is_not_repeated_in_its_description(page_of_verbs):
    # The default of --data depends on another option, which only its description can say.
    without_data = re.sub(r"\| `--data .*", "", page_of_verbs)

    assert "(default:" not in without_data


def test_every_recipe_is_documented():
    page = rendered("<!-- table: recipes -->")

    for name in names():
        assert f"| [`{name}`](#{name}) |" in page


def test_a_recipe_is_documented_with_its_options_as_a_shell_reads_them():
    page = rendered("<!-- table: recipes -->")

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
def test_the_example_on_a_page_of_the_api_runs(name, last_line, capsys, monkeypatch):
    """The pattern is that of the last line that it prints."""
    # The example of the clients sends a request to a server, which returns two embeddings.
    embeddings = io.BytesIO(b'{"data": [{"embedding": [0, 0, 1]}, {"embedding": [0, 1, 0]}]}')
    monkeypatch.setattr("urllib.request.urlopen", lambda request: embeddings)
    example = hooks.PUBLIC[name].example

    exec(compile(example, name, "exec"), {})

    assert re.fullmatch(last_line, capsys.readouterr().out.splitlines()[-1])


@pytest.mark.parametrize("name", ["encoder", "search", "evaluation", "clients"])
def test_a_page_of_the_api_has_its_example(name):
    public, _ = hooks.api_pages()

    example = hooks.PUBLIC[name].example.strip()

    assert f"```python\n{example}\n```" in public[f"api/{name}.md"]


@pytest.mark.parametrize(
    ("config", "fragment"),
    [
        ("context.rounds.ContextConfig", "| `documents` | required | text file or folder"),
        ("context.rounds.ContextConfig", "| `rounds` | `3` |"),
        ("preparation.config.PrepareConfig", "at most 5 % of the text"),
    ],
    ids=["required", "default", "meaning"],
)
def test_a_field_of_a_configuration_file_is_documented(config, fragment):
    table = rendered(f"<!-- table: fields fairseq_lxsr.{config} -->")

    assert fragment in table


def test_the_public_api_has_a_page_for_each_topic_with_the_modules_that_users_call():
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

    # `::: MODULE` is replaced by the documentation of the module.
    documented = re.findall(r"^::: (\S+)", text, re.M)

    assert len(documented) == len(set(documented))
    for modules in hooks.rooms().values():
        assert set(modules) <= set(documented)


@pytest.fixture
def config_of_site(monkeypatch, tmp_path):
    """A function from the host of the repository to the configuration of the site."""

    def configure(host):
        pyproject = tmp_path / "pyproject.toml"
        pyproject.write_text(f'[project.urls]\nRepository = "https://{host}/house"\n')
        monkeypatch.setattr(hooks, "PYPROJECT", pyproject)
        return hooks.on_config(SimpleNamespace(nav=[], repo_url="", repo_name=None))

    return configure


def test_the_site_links_to_the_repository_if_its_address_is_filled_in(config_of_site):
    config = config_of_site("example.org")

    assert config.repo_url == "https://example.org/house"
    assert config.repo_name == "Repository"


def test_the_site_has_no_link_to_a_repository_whose_address_is_a_placeholder(config_of_site):
    config = config_of_site("repository.invalid")

    assert config.repo_url == ""
    assert config.repo_name is None


def test_the_pages_of_the_api_are_added_to_the_navigation(config_of_site):
    [part] = config_of_site("example.org").nav

    assert list(part) == ["Reference of Python"]


@pytest.mark.parametrize(
    ("link", "expected"),
    [
        # Another page.
        ("[a](laser.md#x)", "[a](laser.md#x)"),
        # A file beside the documentation, with another text and with its path as the text.
        ("[results](../benchmarks/speed/train.py)", "results (`benchmarks/speed/train.py`)"),
        (
            "[`benchmarks/speed/train.py`](../benchmarks/speed/train.py)",
            "`benchmarks/speed/train.py`",
        ),
    ],
    ids=["page", "file", "path"],
)
def test_without_an_address_links_to_files_of_the_repository_become_paths(link, expected):
    assert rendered(link, repo_url="") == expected


def test_with_an_address_links_to_files_of_the_repository_lead_there():
    address = "https://example.org/house"

    text = rendered("[how](../Makefile)", repo_url=address)

    assert text == f"[how]({address}/blob/main/Makefile)"


def test_a_link_to_a_file_that_does_not_exist_is_refused():
    with pytest.raises(PluginError, match=re.escape("../nowhere.md")):
        rendered("[a](../nowhere.md)")


@pytest.mark.parametrize(
    "tag",
    [
        '<script src="https://cdn.example/x.js"></script>',
        '<link rel="stylesheet" href="//cdn.example/x.css">',
        '<img alt="a" src="http://example.org/a.png">',
    ],
    ids=["script", "stylesheet", "image"],
)
def test_a_page_that_loads_a_file_from_another_host_is_refused_by_name(tag):
    with pytest.raises(PluginError, match=r"training\.md"):
        hooks.on_post_page(tag, PAGE, None)


@pytest.mark.parametrize(
    "tag",
    ['<a href="https://a.org">x</a>', '<link rel="canonical" href="https://a.org/">'],
    ids=["link", "canonical"],
)
def test_a_page_may_link_to_another_host(tag):
    assert hooks.on_post_page(tag, PAGE, None) == tag


def page_of_site(name, markdown, section=None):
    """Return a page, whose title is its name, as the generator of the site gives it to a hook."""
    return SimpleNamespace(
        file=SimpleNamespace(src_uri=f"{name}.md", url=f"{name}.html"),
        title=name.capitalize(),
        markdown=markdown,
        ancestors=[SimpleNamespace(title=section)] if section else [],
    )


def test_llms_txt_lists_the_pages_by_section_with_their_first_sentences():
    """Titles, pictures, lists and blocks of code are no sentences; internal pages are left out."""
    pages = [
        page_of_site("home", "# Home\n\n![a](b.svg)\n\nMakes [vectors](v.md) of\ntext. Fast.\n"),
        page_of_site("search", "1. A step\n\nType this:\n\n```sh\n```", "Guides"),
        page_of_site("empty", "# Empty", "Guides"),
        page_of_site("api/internals/files", "Modules.", "Guides"),
    ]
    site = SimpleNamespace(site_url="https://a.org/", site_name="name", site_description="about")

    text = hooks.llms_text(pages, site)

    assert (
        text
        == """\
# name

> about

## Pages

- [Home](https://a.org/home.html): Makes vectors of text.

## Guides

- [Search](https://a.org/search.html): Type this
- [Empty](https://a.org/empty.html)
"""
    )


@pytest.mark.parametrize("path", sorted(DOCS.rglob("*.svg")), ids=lambda path: path.stem)
def test_a_drawing_is_narrow_enough_for_a_phone(path):
    """Letters are 10 to 15 units high, and a phone is 360 pixels wide."""
    # The first box is that of the whole drawing.
    width, *_ = re.findall(r'viewBox="0 0 ([\d.]+) ', path.read_text("utf-8"))

    assert float(width) <= 400
