"""Published weights of timm's networks, from the local cache or downloaded, with a quick one-line error."""

from likewise.models.dry_run import shortened

PATIENCE = 3.0  # seconds to wait for a server; the hub's library retries for most of a minute
FILES = ("model.safetensors", "pytorch_model.bin")


def hub_weights(name: str) -> str:
    """Return the path of a file with a network's published weights, downloaded unless it is cached.

    Args:
        name: A name that timm knows, with or without a tag.

    Raises:
        ValueError: There are no weights, or the server cannot be reached within seconds.
    """
    import timm  # noqa: PLC0415 - timm is optional, and brings huggingface_hub
    from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url, try_to_load_from_cache  # noqa: PLC0415
    from huggingface_hub.errors import EntryNotFoundError  # noqa: PLC0415

    configuration = timm.get_pretrained_cfg(name)
    repository = configuration.hf_hub_id if configuration else None
    if not repository:
        url = configuration.url if configuration else None
        remedy = f"download {url} and give its path as checkpoint" if url else "leave out pretrained"
        raise ValueError(f"expected a network with weights on the Hugging Face hub, got {name}: {remedy}")
    for file in FILES:
        cached = try_to_load_from_cache(repository, file)
        if isinstance(cached, str):
            return cached
    for file in FILES:
        try:
            get_hf_file_metadata(hf_hub_url(repository, file), timeout=PATIENCE)
        except EntryNotFoundError:
            continue
        except Exception as error:
            raise _unreachable(name, repository, error) from error
        try:
            return hf_hub_download(repository, file)
        except Exception as error:
            raise _unreachable(name, repository, error) from error
    raise ValueError(
        f"expected {' or '.join(FILES)} in {repository}, got neither: give a file of weights as checkpoint"
    )


def _unreachable(name: str, repository: str, error: Exception) -> ValueError:
    return ValueError(
        f"expected the weights of {name} from the Hugging Face hub, {repository}, got {type(error).__name__}: "
        f"{shortened(str(error))}: check the connection, or give a file of weights as checkpoint"
    )
