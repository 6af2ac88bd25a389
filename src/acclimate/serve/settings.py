"""The settings of `acclimate serve`: from the command line, environment variables, a TOML file, and defaults."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

from acclimate.encoders import BUNDLED
from acclimate.errors import InputError, nearest, reason
from acclimate.serve.http_errors import validation_message
from acclimate.serve.limits import Limits
from acclimate.serve.schemas import RequestBody, StreamSetup

PREFIX = "ACCLIMATE_SERVE_"
EXAMPLES = {  # values of settings that have none by default
    "data": "state",
    "token_file": "tokens",
    "labels": "labels.txt",
    "fitted": "fitted.safetensors",
    "views_kind": "crop",
    "unsure": 0.6,
}
Words = Annotated[list[str], NoDecode]  # the command line splits those of environment variables


class NewStreamSettings(StreamSetup):
    """The setup of streams that are created by their first images."""

    labels: str | list[str] | None = Field(
        None, description="Labels, or a file with one per line; they let first images create streams."
    )
    fitted: Path | None = Field(None, description="A file of `acclimate fit` instead of labels, method and settings.")


DEFAULT_STREAMS = NewStreamSettings.model_validate({})


class ServeSettings(BaseSettings, RequestBody):
    """Everything that can be set for a service."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, env_nested_delimiter="__")

    config: Path | None = Field(None, exclude=True)
    data: Path | None = Field(None, description="Folder for the state of all streams.")
    model: str = Field(BUNDLED, description="Name of the model; see `acclimate models`.")
    device: str = Field("auto", description="Where the model runs: auto, cpu, cuda, cuda:1 or mps.")
    precision: Literal["auto", "float32", "float16", "bfloat16"] = Field(
        "auto", description="Precision of the image tower of a PyTorch model."
    )
    compile: bool = Field(False, description="Compile the image tower of a PyTorch model.")
    plugin: Words = Field([], description="Python files with methods of your own.")
    host: str = Field("127.0.0.1", description="Address to listen on; any except loopback needs tokens.")
    port: int = Field(8000, ge=0, le=65535, description="Port to listen on; 0 for any free port.")
    token_file: Path | None = Field(None, description="File of tokens: one NAME TOKEN STREAM=ACTION per line.")
    allow_host: Words = Field([], description="Other host names for this service, besides localhost.")
    streams: NewStreamSettings = Field(
        DEFAULT_STREAMS, description="Streams that are created by their first images; they need labels or fitted."
    )
    limits: Limits = Field(Limits(), description="Limits on requests, streams, queues and files.")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Return the sources of settings, the most important first."""
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls, init_settings().get("config"))

    def toml(self) -> str:
        """Return all settings as a TOML file, each with a sentence that explains it."""
        return "\n".join(["# Settings of `acclimate serve`; see its --config.", *_table(self, ""), ""])


def load_settings(config: Path | None, given: Mapping[str, Any], options: Iterable[str] = ()) -> ServeSettings:
    """Return the settings of a service.

    Args:
        config: a TOML file with settings, which exists; None for none.
        given: settings that come before environment variables and the file.
        options: names of other environment variables that are allowed, without the prefix and in small letters.

    Raises:
        InputError: a setting is unknown or cannot be used, or the file cannot be read.
    """
    first_words = [*ServeSettings.model_fields, *options]
    for name in os.environ:
        word = name.lower().removeprefix(PREFIX.lower()).split("__")[0]
        if name.upper().startswith(PREFIX) and word not in first_words:
            raise InputError(
                f"the environment variable {name} sets nothing, as {word!r} is unknown; {nearest(word, first_words)}"
            )
    try:
        return ServeSettings(config=config, **given)
    except ValidationError as error:
        raise InputError(f"the settings cannot be used: {validation_message(error)}") from None
    except SettingsError as error:
        raise InputError(f"{error}: {error.__cause__}.") from None
    except (OSError, ValueError) as error:
        raise InputError(f"the file of settings {config} cannot be read: {reason(error)}.") from None


def _table(model: BaseModel, prefix: str) -> Iterator[str]:
    """Yield the lines of a TOML table: its values first, as TOML requires, then the tables within it."""
    tables = {}
    for name, field in type(model).model_fields.items():
        value = getattr(model, name)
        if isinstance(value, BaseModel | dict):
            tables[name] = value
        elif not field.exclude:
            yield f"# {field.description}"
            yield (
                f"# {name} = {_value(EXAMPLES[name])}"
                if value is field.default is None
                else f"{name} = {_value(value)}"
            )
    for name, table in tables.items():
        yield f"\n# {type(model).model_fields[name].description}\n[{prefix}{name}]"
        if isinstance(table, BaseModel):
            yield from _table(table, f"{prefix}{name}.")
        else:
            yield from (f"{_value(key)} = {_value(value)}" for key, value in table.items())


def _value(value: Any) -> str:
    """Return a value as TOML, which is JSON except for null and for the character 0x7f."""
    return json.dumps(False if value is None else value, ensure_ascii=False, default=str).replace("\x7f", "\\u007f")
