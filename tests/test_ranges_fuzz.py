"""Any YAML file as a configuration is read, or refused in one line."""

import contextlib
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_lxsr.context.rounds import ContextConfig
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.options import from_mapping, read_yaml_config
from fairseq_lxsr.preparation.clean import FILTERS, make_filters
from fairseq_lxsr.preparation.config import Cleaning, PrepareConfig, SubwordOptions

yaml = pytest.importorskip("yaml")

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=9),
    st.dates(),
    st.binary(max_size=3),
    st.sampled_from(
        ["", ".", "en-fr", "a\0b", "\ud800", "no", 10**400, -1, 0, 2**31, 0.99, "stopwords"]
    ),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(SCALARS, inner, max_size=3)
    ),
    max_leaves=6,
)


def some_of(kind: type, **nested) -> st.SearchStrategy:
    """Draw mappings with some fields of a dataclass, with any values; `nested` adds values."""
    names = [item.name for item in fields(kind)]
    return st.fixed_dictionaries(
        {}, optional={name: VALUES | nested.get(name, st.nothing()) for name in names}
    )


def filters() -> st.SearchStrategy:
    options = st.dictionaries(
        st.sampled_from(["shortest", "longest", "ratio", "share", "method", "find"]), VALUES
    )
    return st.dictionaries(st.sampled_from([*FILTERS, "none"]), VALUES | options, max_size=3)


PREPARE = some_of(
    PrepareConfig,
    pairs=st.just({"en-fr": "text"}) | st.dictionaries(st.just("en-fr"), VALUES, min_size=1),
    cleaning=some_of(Cleaning, filters=filters(), repeats=st.just("side")),
    subwords=some_of(SubwordOptions),
)
CONTEXT = some_of(ContextConfig, documents=st.just({"en": "a", "fr": "b"}))


def read_or_refused(content, kind: type):
    """Return the configuration, or None if it is refused; check the message."""
    try:
        return from_mapping(content, kind, "the file")
    except InputError as error:
        message = str(error)
    assert "\n" not in message
    assert len(message) < 1000
    return None


@pytest.mark.slow
@settings(derandomize=True, max_examples=30, deadline=None)
@given(content=PREPARE | VALUES)
def test_any_configuration_of_a_preparation_is_read_or_refused(content):
    config = read_or_refused(content, PrepareConfig)
    if config is not None and config.cleaning.filters:
        # The method of language identification may not be installed.
        with contextlib.suppress(InputError):
            make_filters(config.cleaning.filters, ("en", "fr"))


@settings(derandomize=True, max_examples=30, deadline=None)
@given(content=CONTEXT | VALUES)
def test_any_configuration_of_a_training_without_parallel_text_is_read_or_refused(content):
    read_or_refused(content, ContextConfig)


@pytest.mark.parametrize("kind", [PrepareConfig, ContextConfig, Cleaning, SubwordOptions])
@settings(derandomize=True, max_examples=60, deadline=None)
@given(data=st.data())
def test_any_value_of_a_single_field_is_read_or_refused(kind, data):
    """The required fields are valid, so that the value of the field is reached."""
    required = {
        PrepareConfig: {"pairs": {"en-fr": None}},
        ContextConfig: {"documents": {"en": "a", "fr": "b"}},
    }
    name = data.draw(st.sampled_from([item.name for item in fields(kind)]))
    read_or_refused(required.get(kind, {}) | {name: data.draw(VALUES)}, kind)


@settings(derandomize=True, max_examples=100, deadline=None)
@given(
    content=st.binary(max_size=60)
    | VALUES.map(lambda value: yaml.dump(value).encode("utf-8", "replace"))
)
def test_any_bytes_as_a_file_are_refused_with_its_path(content, tmp_path_factory):
    path = Path(tmp_path_factory.getbasetemp()) / "any.yaml"
    path.write_bytes(content)
    for kind in (PrepareConfig, ContextConfig):
        with pytest.raises(InputError, match=r"any\.yaml"):
            read_yaml_config(path, kind)
