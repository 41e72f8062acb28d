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

# Single values of every type that YAML has, and values at limits or with a meaning somewhere.
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
# Single values, and lists and mappings of them.
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(SCALARS, inner, max_size=3)
    ),
    max_leaves=6,
)


def mappings_of_fields(kind: type, **likely_values) -> st.SearchStrategy:
    """Draw mappings from some fields of a dataclass to any values.

    Args:
        likely_values: further values by field, which may be valid.
    """
    values = {}
    for item in fields(kind):
        values[item.name] = VALUES | likely_values.get(item.name, st.nothing())
    return st.fixed_dictionaries({}, optional=values)


def filters() -> st.SearchStrategy:
    """Draw mappings from names of filters to any values, or to options of filters."""
    options = st.dictionaries(
        st.sampled_from(["shortest", "longest", "ratio", "share", "method", "find"]), VALUES
    )
    return st.dictionaries(st.sampled_from([*FILTERS, "none"]), VALUES | options, max_size=3)


PREPARE = mappings_of_fields(
    PrepareConfig,
    pairs=st.just({"en-fr": "text"}) | st.dictionaries(st.just("en-fr"), VALUES, min_size=1),
    cleaning=mappings_of_fields(Cleaning, filters=filters(), repeats=st.just("side")),
    subwords=mappings_of_fields(SubwordOptions),
)
CONTEXT = mappings_of_fields(ContextConfig, documents=st.just({"en": "a", "fr": "b"}))


def assert_read_or_refused(content, kind: type):
    """Check that a configuration is read, or refused in one line of reasonable length.

    Any other exception than InputError fails the test.

    Returns:
        The configuration, or None if it is refused.
    """
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
def test_any_configuration_of_a_preparation_and_its_filters_is_read_or_refused(content):
    config = assert_read_or_refused(content, PrepareConfig)

    if config is not None and config.cleaning.filters:
        # It is also refused if the package that identifies languages is not installed.
        with contextlib.suppress(InputError):
            make_filters(config.cleaning.filters, ("en", "fr"))


@settings(derandomize=True, max_examples=30, deadline=None)
@given(content=CONTEXT | VALUES)
def test_any_configuration_of_a_training_without_parallel_text_is_read_or_refused(content):
    assert_read_or_refused(content, ContextConfig)


# Valid values of the fields without a default.
REQUIRED_FIELDS = {
    PrepareConfig: {"pairs": {"en-fr": None}},
    ContextConfig: {"documents": {"en": "a", "fr": "b"}},
    Cleaning: {},
    SubwordOptions: {},
}


@pytest.mark.parametrize("kind", REQUIRED_FIELDS)
@settings(derandomize=True, max_examples=60, deadline=None)
@given(data=st.data())
def test_a_valid_configuration_with_any_value_in_one_field_is_read_or_refused(kind, data):
    name = data.draw(st.sampled_from([item.name for item in fields(kind)]))
    value = data.draw(VALUES)

    assert_read_or_refused(REQUIRED_FIELDS[kind] | {name: value}, kind)


@settings(derandomize=True, max_examples=100, deadline=None)
@given(
    content=st.binary(max_size=60)
    | VALUES.map(lambda value: yaml.dump(value).encode("utf-8", "replace"))
)
def test_a_file_of_any_bytes_or_values_is_refused_with_its_path(content, tmp_path_factory):
    """No drawn content is a valid configuration, because a required field is always missing."""
    path = Path(tmp_path_factory.getbasetemp()) / "any.yaml"
    path.write_bytes(content)

    for kind in (PrepareConfig, ContextConfig):
        with pytest.raises(InputError, match=r"any\.yaml"):
            read_yaml_config(path, kind)
