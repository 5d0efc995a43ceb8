"""Makes a wheel depend on the torch that its programs are linked with. Read by pyproject.toml."""
import importlib.metadata


def dynamic_metadata(field, settings=None):
    try:
        torch = importlib.metadata.version("torch").split("+")[0]
    except importlib.metadata.PackageNotFoundError:
        raise SystemExit("pipewright is built against the torch of this environment, and there is "
                         "none: pip install torch, then pip install --no-build-isolation .")
    return [f"torch=={torch}", "safetensors"]
