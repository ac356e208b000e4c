"""Record: a JSON file of an artefact, or a part of one, as a checked and frozen object."""

from pydantic import BaseModel, ConfigDict


class Record(BaseModel):
    """A frozen model that refuses unknown keys and documents each field by the string under it."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False, serialize_by_alias=True
    )
