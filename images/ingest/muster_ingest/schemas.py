"""How the columns of a stream may change: within what a reader of all its Parquet files can still read as one table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

_WHOLE = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
_WIDER = {
    **{each: _WHOLE[number + 1 :] for number, each in enumerate(_WHOLE)},
    pa.float32(): (pa.float64(),),
}


MOST_DIGITS = 76
"""The most that a decimal of Arrow has."""


class SchemaChanged(Exception):
    """Two types of one column that no reader can read as one; `args` names the column."""


def merged(known: pa.StructType, new: pa.StructType) -> pa.StructType:
    """Return a type that holds both: all columns of both, each of the wider type. Its columns come in the order in which they were known.

    :raises SchemaChanged: a column has two types of which none is the wider one.
    """
    return _struct(known, new, "")


def _struct(known: pa.StructType, new: pa.StructType, path: str) -> pa.StructType:
    found = {known.field(number).name: known.field(number).type for number in range(known.num_fields)}
    for number in range(new.num_fields):
        field = new.field(number)
        column = f"{path}.{field.name}" if path else field.name
        has = found.get(field.name)
        found[field.name] = field.type if has is None else _wider(has, field.type, column)
    return pa.struct([pa.field(name, kind) for name, kind in found.items()])


def _wider(known: pa.DataType, new: pa.DataType, column: str) -> pa.DataType:
    if known == new or pa.types.is_null(new):
        return known
    if pa.types.is_null(known):
        return new
    if pa.types.is_struct(known) and pa.types.is_struct(new):
        return _struct(known, new, column)
    if pa.types.is_list(known) and pa.types.is_list(new):
        return pa.list_(_wider(known.value_type, new.value_type, f"{column}[]"))
    if pa.types.is_map(known) and pa.types.is_map(new) and known.key_type == new.key_type:
        return pa.map_(known.key_type, _wider(known.item_type, new.item_type, f"{column}{{}}"))
    if pa.types.is_decimal(known) and pa.types.is_decimal(new):
        scale = max(known.scale, new.scale)
        digits = scale + max(known.precision - known.scale, new.precision - new.scale)
        if digits <= MOST_DIGITS:
            return decimal(digits, scale)
    for one, other in ((known, new), (new, known)):
        if other in _WIDER.get(one, ()) or (one in _WHOLE and other == pa.float64()):
            return other
    raise SchemaChanged(column)


def decimal(digits: int, scale: int) -> pa.DataType:
    """Return a decimal; one of up to 38 digits has 16 bytes, which more readers know."""
    return pa.decimal128(digits, scale) if digits <= 38 else pa.decimal256(digits, scale)


def without_unknown(kind: pa.StructType) -> pa.StructType:
    """Return a type without what Parquet cannot hold yet: columns and fields that were only ever null, and objects without fields."""
    fields = [kind.field(number) for number in range(kind.num_fields)]
    known = ((field.name, _without_unknown(field.type)) for field in fields)
    return pa.struct([pa.field(name, found) for name, found in known if found is not None])


def _without_unknown(kind: pa.DataType) -> pa.DataType | None:
    """Return what is known of a type; None where that is nothing."""
    if pa.types.is_struct(kind):
        inner = without_unknown(kind)
        return inner if inner.num_fields else None
    if pa.types.is_list(kind) and not pa.types.is_null(kind.value_type):
        item = _without_unknown(kind.value_type)
        return None if item is None else pa.list_(item)
    return None if pa.types.is_null(kind) else kind


def fields_of(kind: pa.DataType) -> int:
    """Return how many fields a type has, those in objects and lists among them."""
    inner = (kind.field(number).type for number in range(kind.num_fields))
    own = kind.num_fields if pa.types.is_struct(kind) else 0
    return own + sum(fields_of(each) for each in inner if pa.types.is_nested(each))


def paths_of(kind: pa.DataType, above: tuple[str, ...] = ()) -> set[tuple[str, ...]]:
    """Return the fields that :func:`fields_of` counts, each by the names of those around it."""
    found = set[tuple[str, ...]]()
    for number in range(kind.num_fields):
        field = kind.field(number)
        path = (*above, field.name)
        if pa.types.is_struct(kind):
            found.add(path)
        if pa.types.is_nested(field.type):
            found |= paths_of(field.type, path)
    return found


def has_both(values: Sequence[Any], kind: pa.DataType) -> bool:
    """Whether there are booleans in a column of fractions: Arrow takes them for 1.0 and 0.0."""
    if pa.types.is_floating(kind):
        return any(value is True or value is False for value in values)
    there = [value for value in values if value] if pa.types.is_nested(kind) else []
    if pa.types.is_struct(kind):
        fields = (kind.field(number) for number in range(kind.num_fields))
        return any(
            has_both([value.get(field.name) for value in there], field.type)
            for field in fields
            if pa.types.is_floating(field.type) or pa.types.is_nested(field.type)
        )
    return pa.types.is_list(kind) and has_both([each for value in there for each in value], kind.value_type)


def told(kind: pa.StructType) -> str:
    """Return the columns, for a message."""
    fields = [kind.field(number) for number in range(kind.num_fields)]
    return ", ".join(f"{field.name} {field.type}" for field in fields)[:1500] or "no column"
