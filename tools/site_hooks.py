"""What `make docs` computes: pages of the API, tables of options, links to files of the
repository.
"""

import argparse
import importlib
import logging
import os
import re
import shlex
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "fairseq_lxsr"
NO_API = {"cli"}  # the page of the command line has it
INTERNALS = "Modules that the commands are made of. They may change with any version."
PROTOCOLS = (
    "xsr",
    "similarity_search",
    "xsim_plus_plus",
    "mteb_bitext",
    "bucc",
    "sts",
    "minimal_pairs",
    "documents",
    "xnli",
)
PUBLIC = {  # pages of what users call: title, what for, modules
    "encoder": (
        "SentenceEncoder",
        "Turns sentences into vectors. `from fairseq_lxsr import SentenceEncoder`",
        ["fairseq_lxsr.encoder"],
    ),
    "search": (
        "CorpusIndex and Reranker",
        "Searches, mines and scores sentences. Their use: [Search](../searching.md), [Mine and clean](../mining.md).",
        [
            f"fairseq_lxsr.search.{name}"
            for name in ("corpus", "reranker", "bitext", "pairs", "options")
        ],
    ),
    "vectors": (
        "Vectors",
        "Neighbours, indexes, margins and mining of arrays. All names are imported from `fairseq_lxsr.vectors`.",
        [
            f"fairseq_lxsr.vectors.{name}"
            for name in ("neighbours", "index", "margin", "mining", "pieces")
        ],
    ),
    "embeddings": (
        "Embeddings",
        "Other encoders and files of embeddings. All names are imported from `fairseq_lxsr.embeddings`.",
        [
            f"fairseq_lxsr.embeddings.{name}"
            for name in ("load", "stored", "systems", "word_vectors", "contract", "write")
        ],
    ),
    "evaluation": (
        "Evaluation",
        "Scores, their comparison, and a module for each protocol. [Evaluate](../evaluating.md) shows their use.",
        [
            *(f"fairseq_lxsr.evaluation.{name}" for name in ("score", "compare")),
            *(f"fairseq_lxsr.evaluation.protocols.{name}" for name in PROTOCOLS),
        ],
    ),
}
TABLE = re.compile(r"^<!-- table: (\w+)(?: (\S+))? -->$", re.M)
# at the end of the help of an option
DEFAULT = re.compile(r"(.*?)(?: ?\(default: ((?:[^()]|\([^()]*\))*)\)|(?:^|; )default: (.*))?$")
LINK = re.compile(r"(!?)\[([^\]]*)\]\(((?:\.\./)+[^)#\s]+)(#[^)\s]*)?\)")
FOREIGN = re.compile(
    r"<(?:script|img|iframe|source|audio|video)\b[^>]*\ssrc=\"?(?:https?:)?//|<link\b[^>]*\shref=\"?(?:https?:)?//"
)


# --- pages of the API


def rooms() -> dict[str, list[str]]:
    """Public modules of each folder of the package; `package` stands for the files that lie in
    none.
    """
    found: dict[str, list[str]] = {"package": []}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        room = parts[1] if len(parts) > 2 else "package"
        if room not in NO_API and not parts[-1].startswith("_"):
            found.setdefault(room, []).append(".".join(parts))
    return found


def api_pages() -> tuple[dict[str, str], dict[str, str]]:
    """The pages of the API by their addresses, as Markdown: what users call, and the other modules
    of each folder.
    """
    public = {
        f"api/{name}.md": api_page(title, about, modules)
        for name, (title, about, modules) in PUBLIC.items()
    }
    shown = {module for _, _, modules in PUBLIC.values() for module in modules}
    internal = {}
    for room, modules in rooms().items():
        if others := [module for module in modules if module not in shown]:
            title = f"`{'fairseq_lxsr' if room == 'package' else room}`"
            internal[f"api/internals/{room}.md"] = api_page(title, INTERNALS, others)
    return public, internal


def api_page(title: str, about: str, modules: Sequence[str]) -> str:
    blocks = [
        f"## `{module}`\n\n::: {module}\n    options:\n      show_root_heading: false\n      inherited_members: true\n"
        for module in modules
    ]
    return "\n".join([f"# {title}\n\n{about}\n", *blocks])


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    # where the site links to files of the repository, and to itself in its head
    if os.environ.get("REPO_URL"):
        config.repo_url, config.repo_name = os.environ["REPO_URL"], "Repository"
    if config.nav is not None:
        public, internal = api_pages()
        config.nav.append({"Reference of Python": [*public, {"Internals": list(internal)}]})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for pages in api_pages():
        for address, content in pages.items():
            files.append(File.generated(config, address, content=content))
    return files


# --- tables of options


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    def escape(cell: str) -> str:
        return cell.replace("|", "\\|").replace("<", "&lt;")

    lines = [head, tuple("---" for _ in head), *(tuple(map(escape, row)) for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def shown(value: Any) -> str:
    """A default as one writes it."""
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, bool):
        return "on" if value else "off"
    if is_dataclass(value):
        return "see below"
    return "" if value in (None, "", ()) else f"`{value}`"


def registries() -> dict[str, dict[str, Any]]:
    """The configs of our tasks, models, criterions and optimizers, by the name that the command
    line has for them.
    """
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    for room in ("tasks", "models", "criterions", "optim"):
        for path in sorted((PACKAGE / room).glob("[!_]*.py")):
            importlib.import_module(f"fairseq_lxsr.{room}.{path.stem}")
    root.handlers, root.level = handlers, level  # fairseq sends everybody's messages to the screen
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
    """Its options as fairseq-train takes them; those that other configs declare are left out."""
    from fairseq.dataclass.utils import gen_parser_from_dataclass

    parser = argparse.ArgumentParser(add_help=False)
    gen_parser_from_dataclass(parser, config())
    return [action for action in parser._actions if action.option_strings]


def option_table(kind: str) -> Callable[[str], str]:
    """Options of a task, model, criterion or optimizer; those of the terms of the loss have tables
    of their own.
    """

    def make(name: str) -> str:
        config = registries()[kind][name]
        of_terms = {
            field.name
            for term in terms()
            if issubclass(config, term.Options)
            for field in fields(term.Options)
        }
        return option_rows([option for option in options_of(config) if option.dest not in of_terms])

    return make


def option_rows(options: list[argparse.Action]) -> str:
    rows = []
    for option in options:
        choices = ", ".join(f"`{choice}`" for choice in option.choices or ())
        meaning = (option.help or "") + (f"; one of {choices}" if choices else "")
        rows.append((f"`{option.option_strings[0]}`", shown(option.default), meaning))
    return table(("option", "default", "meaning"), rows) if rows else "It has no options."


def terms() -> tuple[Any, ...]:
    registries()
    from fairseq_lxsr.training.lightweight.terms import all_terms

    return all_terms()


def term_tables(_: str) -> str:
    """The options of each term of the loss, under what its module says of it."""
    parts = []
    for term in terms():
        summary = (sys.modules[term.__module__].__doc__ or "").strip().splitlines()[0]
        _, _, meaning = summary.partition(": ")
        parts.append(f"#### Term `{term.name}`\n\n{meaning[:1].upper()}{meaning[1:]}\n\n")
        parts.append(option_rows(options_of(term.Options)) + "\n")
    return "\n".join(parts)


def preset_table(model: str) -> str:
    """The values that `--arch NAME` stands for."""
    registries()
    from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_INV_REGISTRY

    presets = {}
    for arch in ARCH_MODEL_INV_REGISTRY[model]:
        values = argparse.Namespace()
        ARCH_CONFIG_REGISTRY[arch](values)
        presets[arch] = vars(values)
    names = list(dict.fromkeys(name for preset in presets.values() for name in preset))
    rows = [
        (f"`{arch}`", *(shown(preset.get(name)) for name in names))
        for arch, preset in presets.items()
    ]
    return table(("`--arch`", *(f"`--{name.replace('_', '-')}`" for name in names)), rows)


def field_table(path: str) -> str:
    """Fields of a dataclass, `module.Class`, with defaults; what they mean stands in its
    docstring.
    """
    module, _, name = path.rpartition(".")
    config = getattr(importlib.import_module(module), name)
    meanings = dict(re.findall(r"^ {8}(\w+): (.+(?:\n {12}.+)*)", config.__doc__ or "", re.M))
    rows = []
    for one in fields(config):
        default = one.default if one.default_factory is MISSING else one.default_factory()
        rows.append(
            (
                f"`{one.name}`",
                "required" if default is MISSING else shown(default),
                " ".join(
                    (meanings.get(one.name) or one.metadata.get("help", ""))
                    .replace("%%", "%")
                    .split()
                ),
            )
        )
    return table(("field", "default", "meaning"), rows)


def verb_helps(_: str) -> str:
    """The help of every verb of `lxsr` and of the actions that it has."""
    from fairseq_lxsr.cli.main import VERBS, make_parser

    os.environ["COLUMNS"] = "100"
    return "\n".join(
        [
            _help(make_parser(""), 2),
            *(_help(_choices(make_parser(verb))[verb], 2) for verb in VERBS),
        ]
    )


def _help(parser: argparse.ArgumentParser, level: int) -> str:
    from fairseq_lxsr.cli.evaluate import ProtocolParser

    if isinstance(parser, ProtocolParser):
        parser.add_all_options()  # which a user's command line does as it is parsed
    more = _choices(parser) if parser.prog != "lxsr" else {}
    about = " ".join((parser.description or "").split()).removeprefix(f"`{parser.prog}`: ")
    usage = f"```text\n{parser.format_usage()}```\n"
    page = [
        f"{'#' * level} `{parser.prog}`\n",
        f"{about[:1].upper()}{about[1:]}\n",
        usage,
        _help_table(parser),
    ]
    return "\n".join([*page, *(_help(choice, level + 1) for choice in more.values())])


def _help_table(parser: argparse.ArgumentParser) -> str:
    """The arguments of a parser: how each is written, its default and its meaning; verbs and
    actions by their names.
    """
    formatter, rows = parser._get_formatter(), []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            rows += [
                (f"`{one.metavar or one.dest}`", "", one.help or "")
                for one in action._choices_actions
            ]
        elif not isinstance(action, argparse._HelpAction):
            meaning = " ".join(formatter._expand_help(action).split()) if action.help else ""
            meaning, *default = DEFAULT.match(meaning).groups("")  # type: ignore[union-attr]
            rows.append(
                (f"`{formatter._format_action_invocation(action)}`", "".join(default), meaning)
            )
    return table(("argument", "default", "meaning"), rows) + "\n" if rows else ""


def _choices(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    found = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return found[0].choices if found else {}


def recipe_list(_: str) -> str:
    """All recipes, and the options that each stands for."""
    from fairseq_lxsr.recipes import names, read_recipe

    recipes = {name: read_recipe(name) for name in names()}
    rows = [
        (f"[`{name}`](#{name})", recipe.description, recipe.source)
        for name, recipe in recipes.items()
    ]
    pages = [table(("recipe", "trains", "source"), rows) + "\n"]
    for name, recipe in recipes.items():
        words = [
            f"--{option}" if value is True else f"--{option} {shlex.quote(str(value))}"
            for option, value in recipe.options.items()
            if value is not False
        ]
        text = textwrap.fill(" ".join(words), 100, break_long_words=False, break_on_hyphens=False)
        rises = recipe.warmup and recipe.options["lr-scheduler"] == "polynomial_decay"
        warmup = (
            f"\nThe learning rate rises for {recipe.warmup:g} of all updates.\n" if rises else ""
        )
        pages.append(f"### `{name}` {{ #{name} }}\n\n```text\n{text}\n```\n{warmup}")
    return "\n".join(pages)


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


# --- links


def repository_link(page: Page, config: MkDocsConfig) -> Callable[[re.Match], str]:
    """Links that leave docs/ work in the repository; the site shows the path, or links to
    `repo_url` if it is set.
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
        return f"`{name}`" if text.strip("`") in (name, Path(name).name) else f"{text} (`{name}`)"

    return replace


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    made = TABLE.sub(lambda match: TABLES[match[1]](match[2]), markdown)
    return LINK.sub(repository_link(page, config), made)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    found = FOREIGN.search(output)
    if found:
        raise PluginError(f"{page.file.src_uri}: loads a file of another host: {found[0]}")
    return output
