"""Models by their id on the Hugging Face hub: `org/name` becomes a directory in the hub's own cache.

Needs the extra `[hub]`. Where the cache is, whose token is used and whether the network is are the hub client's own
settings: `HF_HOME`, `HF_TOKEN`, `HF_ENDPOINT`, `HF_HUB_OFFLINE`.
"""

import re
from pathlib import Path

from catenary_runtime.config import ConfigError
from catenary_runtime.models import FILES

_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def is_hub_id(model: str) -> bool:
    """Whether this names a model on the hub: `org/name`, and nothing of that name is here."""
    return _ID.fullmatch(model) is not None and not model.endswith(".gguf") and not Path(model).exists()


def hub_directory(model: str, *, weights: bool) -> Path:
    """A model's directory, downloaded unless it is in the cache; without `weights`, what a prompt needs alone. Blocks.

    Raises:
        ConfigError: it cannot be had; says what to do.
    """
    try:
        from huggingface_hub import snapshot_download  # an extra
        from huggingface_hub.errors import (
            GatedRepoError,
            HfHubHTTPError,
            HFValidationError,
            LocalEntryNotFoundError,
            RepositoryNotFoundError,
        )
    except ImportError as error:
        raise _unusable(model, "install `catenary-runtime[hub]`, or name a directory") from error
    try:
        return Path(snapshot_download(model, allow_patterns=None if weights else list(FILES)))
    except GatedRepoError as error:
        raise _unusable(model, "accept its terms on the hub, and set HF_TOKEN") from error
    except RepositoryNotFoundError as error:
        raise _unusable(model, "the hub has no such model; if it is private, set HF_TOKEN") from error
    except LocalEntryNotFoundError as error:
        how = f"`hf download {model}` where there is a network and the same HF_HOME, or name a directory"
        raise _unusable(model, f"the hub cannot be reached and it is not in the cache: {how}") from error
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        raise _unusable(model, str(error)) from error


def _unusable(model: str, why: str) -> ConfigError:
    return ConfigError(f"model {model}: {why}", field="model_path")
