"""Hooks for `make docs`: they generate API pages, option tables and links to the repository.

mkdocs calls the functions `on_...`. A comment such as `<!-- table: recipes -->` in a page is
replaced by a table of `TABLES`.
"""

import argparse
import importlib
import logging
import os
import re
import shlex
import sys
import textwrap
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "fairseq_lxsr"
PYPROJECT = ROOT / "pyproject.toml"
# Folders without an API page: the command line has its own page.
NO_API = {"cli"}
INTERNALS = "Modules that the commands are made of. They may change with any version."
PROTOCOLS = (
    *("xsr", "similarity_search", "xsim_plus_plus", "mteb_bitext", "bucc"),
    *("sts", "minimal_pairs", "passages", "documents", "xnli"),
)


class PublicPage(NamedTuple):
    """An API page of functions and classes that users call.

    Attributes:
        title: title of the page.
        about: its first paragraph.
        folder: folder of the package.
        modules: modules of the folder; empty for the folder itself.
        example: a program, shown before the modules.
    """

    title: str
    about: str
    folder: str
    modules: tuple[str, ...] = ()
    example: str = ""

    def names(self) -> list[str]:
        """Return the full names of the modules."""
        package = f"fairseq_lxsr.{self.folder}"
        return [f"{package}.{name}" for name in self.modules] or [package]


ENCODE = """
from fairseq_lxsr import SentenceEncoder

encoder = SentenceEncoder.from_pretrained("lxsr-static")
notes = ["Où est la gare ?", "Es regnet.", "El perro duerme."]
vectors = encoder.encode(notes)  # float32 [3, D]
query = encoder.encode("The dog is asleep.")  # float32 [D]
cosines = encoder.similarity(query, vectors)[0]
for note, cosine in zip(notes, cosines):
    print(f"{cosine:.2f} {note}")
"""
SEARCH = """
from tempfile import mkdtemp

from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.search import CorpusIndex

encoder = SentenceEncoder.from_pretrained("lxsr-static")
notes = ["Où est la gare ?", "Es regnet.", "El perro duerme."]
index = CorpusIndex.build(f"{mkdtemp()}/notes", notes, encoder)
index.add(["今日は暑いです。"])
for hit in index.search("The dog is asleep.", k=2):
    print(f"{hit.score:.2f} {hit.text}")
print(index)
"""
EVALUATE = """
from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.evaluation.protocols.similarity_search import error_rate

english = ["The dog sleeps.", "It rains.", "A red door.", "Good night!", "I read a book."]
french = ["Le chien dort.", "Il pleut.", "Une porte rouge.", "Bonne nuit !", "Je lis un livre."]
encoder = SentenceEncoder.from_pretrained("lxsr-static")
errors = error_rate(encoder.encode(english), encoder.encode(french), "tatoeba")
print(f"{errors.value:.1f} % of the sentences do not find their translation")
"""
ASK = """
# lxsr serve --model lxsr-static
import json
from urllib.request import Request, urlopen

body = json.dumps({"model": "lxsr-static", "input": ["A dog.", "Un chien."]}).encode()
address = "http://127.0.0.1:8000/v1/embeddings"
with urlopen(Request(address, body, {"Content-Type": "application/json"})) as answer:
    rows = json.load(answer)["data"]
print(len(rows), len(rows[0]["embedding"]))
"""
PUBLIC = {
    "encoder": PublicPage(
        "SentenceEncoder",
        "Turns sentences into vectors. `from fairseq_lxsr import SentenceEncoder`",
        "encoder",
        example=ENCODE,
    ),
    "search": PublicPage(
        "CorpusIndex and Reranker",
        "Searches, mines and scores sentences. Their use: [Search](../searching.md),"
        " [Mine and clean](../mining.md).",
        "search",
        ("corpus", "passages", "reranker", "bitext", "pairs", "options"),
        SEARCH,
    ),
    "vectors": PublicPage(
        "Vectors",
        "Neighbours, indexes, margins and mining of arrays. All names are imported from"
        " `fairseq_lxsr.vectors`.",
        "vectors",
        ("neighbours", "index", "margin", "mining", "pieces"),
    ),
    "embeddings": PublicPage(
        "Embeddings",
        "Other encoders and files of embeddings. All names are imported from"
        " `fairseq_lxsr.embeddings`.",
        "embeddings",
        ("load", "stored", "systems", "word_vectors", "contract", "write"),
    ),
    "evaluation": PublicPage(
        "Evaluation",
        "Scores, their comparison, and a module for each protocol."
        " [Evaluate](../evaluating.md) shows their use.",
        "evaluation",
        ("score", "compare", *(f"protocols.{name}" for name in PROTOCOLS)),
        EVALUATE,
    ),
    "clients": PublicPage(
        "Server and clients",
        "Any HTTP client can ask [the server](../serving.md). The classes are for programs that"
        " bring an interface for embeddings: [In other tools](../tools.md).",
        "clients",
        ("langchain", "llama_index", "haystack", "chroma", "lance", "sklearn"),
        ASK,
    ),
}
TABLE = re.compile(r"^<!-- table: (\w+)(?: (\S+))? -->$", re.M)
# A default at the end of the help of an option.
DEFAULT = re.compile(r"(.*?)(?: ?\(default: ((?:[^()]|\([^()]*\))*)\)|(?:^|; )default: (.*))?$")
LINK = re.compile(r"(!?)\[([^\]]*)\]\(((?:\.\./)+[^)#\s]+)(#[^)\s]*)?\)")
# A page that loads a file from another host.
FOREIGN = re.compile(
    r"<(?:script|img|iframe|source|audio|video)\b[^>]*\ssrc=\"?(?:https?:)?//"
    r"|<link\b(?![^>]*\brel=\"?canonical)[^>]*\shref=\"?(?:https?:)?//"
)
# A paragraph of text: neither a heading, a comment, a picture, a list, a table nor code.
PARAGRAPH = re.compile(r"(?:^|\n\n)((?![#<!:`|*-]|\d+\.)[^\n]+(?:\n[^\n]+)*)")
# Width of an option in characters.
OPTIONS_WIDTH = 100


# --- Pages of the API


def rooms() -> dict[str, list[str]]:
    """Map each folder to its public modules; `package` has the modules outside all folders."""
    modules: dict[str, list[str]] = {"package": []}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        room = parts[1] if len(parts) > 2 else "package"
        if room not in NO_API and not parts[-1].startswith("_"):
            modules.setdefault(room, []).append(".".join(parts))
    return modules


def api_pages() -> tuple[dict[str, str], dict[str, str]]:
    """Map addresses to the API pages in Markdown.

    Returns:
        The pages of what users call, and those of the other modules of each folder.
    """
    public = {}
    public_modules: set[str] = set()
    for name, page in PUBLIC.items():
        about = page.about
        if page.example:
            about += f"\n\n```python\n{page.example.strip()}\n```"
        public[f"api/{name}.md"] = api_page(page.title, about, page.names())
        public_modules.update(page.names())
    internal = {}
    for room, modules in rooms().items():
        internal_modules = [module for module in modules if module not in public_modules]
        if internal_modules:
            title = "`fairseq_lxsr`" if room == "package" else f"`{room}`"
            page_text = api_page(title, INTERNALS, internal_modules)
            internal[f"api/internals/{room}.md"] = page_text
    return public, internal


def api_page(title: str, about: str, modules: Sequence[str]) -> str:
    """Return a page that documents some modules."""
    options = "    options:\n      show_root_heading: false\n      inherited_members: true\n"
    blocks = [f"## `{module}`\n\n::: {module}\n{options}" for module in modules]
    return "\n".join([f"# {title}\n\n{about}\n", *blocks])


def repository_address(path: Path) -> str:
    """Return the address of the repository in pyproject.toml, or an empty string before a release.

    Before a release, it is a placeholder whose host ends in .invalid, see tools/release.py.
    """
    address = tomllib.loads(path.read_text(encoding="utf-8"))["project"]["urls"]["Repository"]
    if ".invalid/" in address:
        return ""
    return address


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Set the address of the repository, and add the pages of the API to the navigation."""
    address = repository_address(PYPROJECT)
    if address:
        config.repo_url = address
        config.repo_name = "Repository"
    if config.nav is not None:
        public, internal = api_pages()
        config.nav.append({"Reference of Python": [*public, {"Internals": list(internal)}]})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the API to the site."""
    for pages in api_pages():
        for address, content in pages.items():
            files.append(File.generated(config, address, content=content))
    return files


# --- Tables of options


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Return a table in Markdown."""
    lines = [head, ("---",) * len(head)]
    lines += [tuple(map(escape, row)) for row in rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def escape(cell: str) -> str:
    """Escape the characters that end a cell or start a tag."""
    return cell.replace("|", "\\|").replace("<", "&lt;")


def default_cell(value: Any) -> str:
    """Return a default as users write it."""
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, bool):
        return "on" if value else "off"
    if is_dataclass(value):
        return "see below"
    return "" if value in (None, "", ()) else f"`{value}`"


def registries() -> dict[str, dict[str, Any]]:
    """Map names to the configs of our tasks, models, criterions and optimizers."""
    # Importing fairseq redirects the messages of all libraries to the screen.
    root = logging.getLogger()
    handlers = list(root.handlers)
    level = root.level
    for room in ("tasks", "models", "criterions", "optim"):
        for path in sorted((PACKAGE / room).glob("[!_]*.py")):
            importlib.import_module(f"fairseq_lxsr.{room}.{path.stem}")
    root.handlers = handlers
    root.level = level
    from fairseq.criterions import CRITERION_DATACLASS_REGISTRY
    from fairseq.models import MODEL_DATACLASS_REGISTRY
    from fairseq.optim import OPTIMIZER_DATACLASS_REGISTRY
    from fairseq.tasks import TASK_DATACLASS_REGISTRY

    from fairseq_lxsr.training.fairseq_patches import configs_of_package

    return {
        "task": configs_of_package(TASK_DATACLASS_REGISTRY),
        "model": configs_of_package(MODEL_DATACLASS_REGISTRY),
        "criterion": configs_of_package(CRITERION_DATACLASS_REGISTRY),
        "optimizer": configs_of_package(OPTIMIZER_DATACLASS_REGISTRY),
    }


def options_of(config: type) -> list[argparse.Action]:
    """Return the options of fairseq-train that a config itself declares."""
    from fairseq.dataclass.utils import gen_parser_from_dataclass

    parser = argparse.ArgumentParser(add_help=False)
    gen_parser_from_dataclass(parser, config())
    return [action for action in parser._actions if action.option_strings]


def option_table(kind: str) -> Callable[[str], str]:
    """Return a function that makes the table of a task, model, criterion or optimizer.

    The options of the terms of the loss have separate tables.
    """

    def make(name: str) -> str:
        config = registries()[kind][name]
        term_options: set[str] = set()
        for term in terms():
            if issubclass(config, term.Options):
                term_options.update(field.name for field in fields(term.Options))
        return option_rows(
            [option for option in options_of(config) if option.dest not in term_options]
        )

    return make


def option_rows(options: list[argparse.Action]) -> str:
    """Return the table of some options."""
    if not options:
        return "It has no options."
    rows = []
    for option in options:
        meaning = option.help or ""
        if option.choices:
            choices = ", ".join(f"`{choice}`" for choice in option.choices)
            meaning += f"; one of {choices}"
        rows.append((f"`{option.option_strings[0]}`", default_cell(option.default), meaning))
    return table(("option", "default", "meaning"), rows)


def terms() -> tuple[Any, ...]:
    """Return the terms of the loss."""
    registries()
    from fairseq_lxsr.training.lightweight.terms import all_terms

    return all_terms()


def term_tables(_: str) -> str:
    """Return the options of each term of the loss, with the summary of its module."""
    parts = []
    for term in terms():
        summary = (sys.modules[term.__module__].__doc__ or "").strip().splitlines()[0]
        _, _, meaning = summary.partition(": ")
        parts.append(f"#### Term `{term.name}`\n\n{sentence(meaning)}\n\n")
        parts.append(option_rows(options_of(term.Options)) + "\n")
    return "\n".join(parts)


def sentence(text: str) -> str:
    """Return a text with a capital first letter."""
    return text[:1].upper() + text[1:]


def preset_table(model: str) -> str:
    """Return the values that each `--arch NAME` of a model stands for."""
    registries()
    from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_INV_REGISTRY

    presets = {}
    for arch in ARCH_MODEL_INV_REGISTRY[model]:
        values = argparse.Namespace()
        ARCH_CONFIG_REGISTRY[arch](values)
        presets[arch] = vars(values)
    names = list(dict.fromkeys(name for preset in presets.values() for name in preset))
    head = ("`--arch`", *(f"`--{name.replace('_', '-')}`" for name in names))
    rows = []
    for arch, preset in presets.items():
        rows.append((f"`{arch}`", *(default_cell(preset.get(name)) for name in names)))
    return table(head, rows)


def field_table(path: str) -> str:
    """Return the fields of a dataclass `module.Class`, with the meanings in its docstring."""
    module, _, name = path.rpartition(".")
    config = getattr(importlib.import_module(module), name)
    meanings = dict(re.findall(r"^ {8}(\w+): (.+(?:\n {12}.+)*)", config.__doc__ or "", re.M))
    rows = []
    for item in fields(config):
        meaning = meanings.get(item.name) or item.metadata.get("help", "")
        meaning = " ".join(meaning.replace("%%", "%").split())
        rows.append((f"`{item.name}`", field_default(item), meaning))
    return table(("field", "default", "meaning"), rows)


def field_default(item: Field) -> str:
    """Return the default of a field as users write it."""
    if item.default_factory is not MISSING:
        return default_cell(item.default_factory())
    return "required" if item.default is MISSING else default_cell(item.default)


def verb_helps(_: str) -> str:
    """Return the help of every verb of `lxsr` and of its actions."""
    from fairseq_lxsr.cli.main import VERBS, make_parser

    os.environ["COLUMNS"] = "100"
    helps = [_help(make_parser(""), 2)]
    helps += [_help(_choices(make_parser(verb))[verb], 2) for verb in VERBS]
    return "\n".join(helps)


def _help(parser: argparse.ArgumentParser, level: int) -> str:
    """Return the help of a parser and of its actions.

    Args:
        parser: the parser.
        level: level of the heading.
    """
    from fairseq_lxsr.cli.evaluate import ProtocolParser

    if isinstance(parser, ProtocolParser):
        # On a user's command line, parsing adds them.
        parser.add_all_options()
    about = " ".join((parser.description or "").split()).removeprefix(f"`{parser.prog}`: ")
    page = [
        f"{'#' * level} `{parser.prog}`\n",
        f"{sentence(about)}\n",
        f"```text\n{parser.format_usage()}```\n",
        _help_table(parser),
    ]
    if parser.prog != "lxsr":
        page += [_help(action, level + 1) for action in _choices(parser).values()]
    return "\n".join(page)


def _help_table(parser: argparse.ArgumentParser) -> str:
    """Return the table of the arguments of a parser, with their defaults and meanings."""
    rows: list[tuple[str, ...]] = []
    for action in parser._actions:
        rows += _help_rows(parser, action)
    return table(("argument", "default", "meaning"), rows) + "\n" if rows else ""


def _help_rows(
    parser: argparse.ArgumentParser, action: argparse.Action
) -> Iterator[tuple[str, ...]]:
    """Yield the row of an argument, or a row for each verb or action."""
    formatter = parser._get_formatter()
    if isinstance(action, argparse._SubParsersAction):
        for choice in action._choices_actions:
            yield f"`{choice.metavar or choice.dest}`", "", choice.help or ""
    elif not isinstance(action, argparse._HelpAction):
        help_text = " ".join(formatter._expand_help(action).split()) if action.help else ""
        meaning, *default = DEFAULT.match(help_text).groups("")  # type: ignore[union-attr]
        name = formatter._format_action_invocation(action)
        yield f"`{name}`", "".join(default), meaning


def _choices(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return the parsers of the verbs or actions of a parser."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return action.choices
    return {}


def recipe_list(_: str) -> str:
    """Return all recipes, and the options that each stands for."""
    from fairseq_lxsr.recipes import names, read_recipe

    recipes = {name: read_recipe(name) for name in names()}
    rows = []
    pages = []
    for name, recipe in recipes.items():
        rows.append((f"[`{name}`](#{name})", recipe.description, recipe.source))
        options = textwrap.fill(
            _recipe_options(recipe.options),
            OPTIONS_WIDTH,
            break_long_words=False,
            break_on_hyphens=False,
        )
        page = f"### `{name}` {{ #{name} }}\n\n```text\n{options}\n```\n"
        if recipe.warmup and "warmup-updates" not in recipe.options:
            page += f"\nThe learning rate rises for {recipe.warmup:g} of all updates.\n"
        pages.append(page)
    return "\n".join([table(("recipe", "trains", "source"), rows) + "\n", *pages])


def _recipe_options(options: Mapping[str, Any]) -> str:
    """Return options as users write them."""
    words = []
    for option, value in options.items():
        if value is True:
            words.append(f"--{option}")
        elif value is not False:
            words.append(f"--{option} {shlex.quote(str(value))}")
    return " ".join(words)


TABLES: dict[str, Callable[[str], str]] = {
    "task": option_table("task"),
    "model": option_table("model"),
    "criterion": option_table("criterion"),
    "optimizer": option_table("optimizer"),
    "terms": term_tables,
    "presets": preset_table,
    "fields": field_table,
    "verbs": verb_helps,
    "recipes": recipe_list,
}


# --- Links


def repository_link(page: Page, config: MkDocsConfig) -> Callable[[re.Match], str]:
    """Return a function that replaces links from docs/ to other files of the repository.

    They become links to `repo_url` if it is set, and otherwise the path as text.
    """

    def replace(match: re.Match) -> str:
        picture, text, target, anchor = match.groups()
        path = (Path(config.docs_dir) / page.file.src_uri).parent.joinpath(target).resolve()
        if path.is_relative_to(config.docs_dir):
            return match[0]
        if not path.exists():
            raise PluginError(f"{page.file.src_uri}: {target} is not in the repository")
        name = path.relative_to(ROOT).as_posix()
        if config.repo_url and not picture:
            return f"[{text}]({config.repo_url.rstrip('/')}/blob/main/{name}{anchor or ''})"
        if text.strip("`") in (name, Path(name).name):
            return f"`{name}`"
        return f"{text} (`{name}`)"

    return replace


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Insert the tables into a page, and replace its links to the repository."""
    with_tables = TABLE.sub(lambda match: TABLES[match[1]](match[2]), markdown)
    return LINK.sub(repository_link(page, config), with_tables)


def on_env(env: Any, config: MkDocsConfig, files: Files) -> None:
    """Add llms.txt, a list of all pages for programs that read documentation."""
    pages = [file.page for file in files.documentation_pages() if file.page]
    files.append(File.generated(config, "llms.txt", content=llms_text(pages, config)))


def llms_text(pages: Sequence[Page], config: MkDocsConfig) -> str:
    """Return the list of pages by section, each with its address and its first sentence.

    Args:
        pages: pages of the site, with titles; internals are left out.
        config: configuration of the site. Without `site_url`, addresses are relative.
    """
    sections: dict[str, list[str]] = {}
    for page in pages:
        if page.file.src_uri.startswith("api/internals/"):
            continue
        # The outermost section; a page outside all sections has none.
        titles = ["Pages", *(section.title or "" for section in page.ancestors)]
        address = f"{config.site_url or ''}{page.file.url}"
        line = f"- [{page.title}]({address})"
        summary = first_sentence(page.markdown or "")
        if summary:
            line += f": {summary}"
        sections.setdefault(titles[-1], []).append(line)
    parts = [f"# {config.site_name}", f"> {config.site_description}"]
    for section, lines in sections.items():
        parts += [f"## {section}", "\n".join(lines)]
    return "\n\n".join(parts) + "\n"


def first_sentence(markdown: str) -> str:
    """Return the first sentence of a page without links, or an empty string."""
    paragraph = PARAGRAPH.search(markdown)
    if paragraph is None:
        return ""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(paragraph[1].split()))
    return re.split(r"(?<=[.?!]) ", text, maxsplit=1)[0].removesuffix(":")


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Raise an error if a page loads a file from another host."""
    foreign = FOREIGN.search(output)
    if foreign:
        raise PluginError(f"{page.file.src_uri}: loads a file of another host: {foreign[0]}")
    return output
