"""open_clip models: `open_clip:NAME/TAG`, or a model, its preprocessing and its tokenizer as objects."""

from collections.abc import Callable, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any

from acclimate.arrays import Array, HostArray, to_host
from acclimate.encoders.loading import Precision, Reopened, check_precision, import_library, torch_device
from acclimate.encoders.preprocess import Preprocess
from acclimate.errors import ModelError, root_cause

if TYPE_CHECKING:
    from acclimate.encoders.tower import TextTower


def load(name: str, device: str = "auto", precision: Precision = "auto", compile: bool = False) -> "OpenClipEncoder":
    """Load a model by its name and tag; downloads the weights if they are not in the cache."""
    open_clip = import_library("open_clip", f"open_clip:{name} needs open_clip", "open-clip")
    device = torch_device(device)
    precision = check_precision(precision, device)
    model_name, slash, tag = name.rpartition("/")
    if not slash or not model_name or not tag:
        raise ModelError(f"open_clip models are named NAME/TAG, for instance open_clip:ViT-B-16/openai; got {name!r}.")
    tags = open_clip.list_pretrained_tags_by_model(model_name)
    if tag not in tags:
        known = f"its tags are {', '.join(tags)}" if tags else "see open_clip.list_pretrained()"
        raise ModelError(f"open_clip has no weights {tag!r} for {model_name!r}; {known}.")
    # Weights trained with QuickGELU give wrong features without it, and open_clip only warns.
    quick = tag == "openai" or bool((open_clip.get_pretrained_cfg(model_name, tag) or {}).get("quick_gelu"))
    try:
        model, _, preprocess = open_clip.create_model_and_transforms(
            model_name, pretrained=tag, force_quick_gelu=quick, device=device
        )
        tokenizer = open_clip.get_tokenizer(model_name)
    except Exception as error:  # torch, the hub and tokenizers raise many kinds
        why = root_cause(error) if isinstance(error, ImportError) else error
        raise ModelError(f"cannot load open_clip:{name}: {why}. Check the network, or use a local model.") from error
    return OpenClipEncoder(model, preprocess, tokenizer, f"open_clip:{name}", precision, compile)


class OpenClipEncoder(Reopened):
    """A PyTorch model of open_clip, or another one with the same interface, on the device of its parameters.

    Args:
        model: has encode_image, encode_text, logit_scale (the logarithm of the scale) and possibly logit_bias.
        preprocess: maps a Pillow image to a tensor (3, h, w).
        tokenizer: maps a list of texts to token ids.
        fingerprint: identifies the weights; without it, text features are not cached on disk.
        precision: precision of the image tower, whose weights are converted in place; "auto" for the present one.
        compile: compile the image tower; see `load_encoder`.

    Attributes:
        prepare: maps an RGB image to pixels (3, h, w); also called `preprocess`.
        device: device on which the model runs.
        precision: precision of the image tower: "float32", "float16" or "bfloat16". The text tower keeps its own.
    """

    def __init__(
        self,
        model: Any,
        preprocess: Callable[[Any], Any],
        tokenizer: Any,
        fingerprint: str = "",
        precision: Precision = "auto",
        compile: bool = False,
    ) -> None:
        from acclimate.encoders.tower import ImageTower

        check_precision(precision, "")
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.preprocess = Preprocess.from_torchvision(preprocess) or preprocess
        self.prepare = self.preprocess
        self.device = next(model.parameters()).device
        self.logit_scale = float(model.logit_scale.detach().exp())
        bias = getattr(model, "logit_bias", None)
        self.logit_bias = 0.0 if bias is None else float(bias.detach())
        self.fingerprint = fingerprint
        self.tokenizing = Lock()  # tokenizers are not thread-safe
        self._tower: TextTower | None = None
        self.dim = int(self.encode_text(["a"]).shape[1])
        self._image_tower = ImageTower(model, self.image_features, self.prepare, precision, compile)
        self.precision = self._image_tower.precision

    def encode_images(self, images: Sequence[Any]) -> Array:
        """Return the features (n, dim) of n prepared images.

        Args:
            images: (3, h, w) each, arrays or tensors of floats; or all of them as a tensor (n, 3, h, w).

        Returns:
            A NumPy array; on a CUDA GPU a float32 tensor there, which need not be computed yet.
        """
        import torch

        features = self._image_tower(images)
        if self.device.type == "cuda":
            return features.to(torch.float32, copy=True)  # outside of inference mode, so that it can be used anywhere
        return to_host(features.float())

    def encode_text(self, texts: Sequence[str]) -> HostArray:
        """Return the features (n, dim) of n texts, truncated to the context length of the model."""
        import torch

        with torch.inference_mode():
            return to_host(self.text_features(self.token_ids(texts).to(self.device)).float())

    def token_ids(self, texts: Sequence[str]) -> Any:
        """Return the token ids of n texts as a tensor (n, context), padded."""
        with self.tokenizing:
            return self.tokenizer(list(texts))

    def image_features(self, pixels: Any) -> Any:
        """Run the model on a tensor of pixels (n, 3, h, w)."""
        return self.model.encode_image(pixels)

    def text_features(self, ids: Any, mask: Any = None) -> Any:
        """Run the model on token ids (n, length); open_clip's models need no mask of the padding."""
        return self.model.encode_text(ids)

    def text_tower(self) -> "TextTower":
        """Return the text tower, for methods that learn prompts; ModelError if it cannot take embeddings."""
        if self._tower is None:
            from acclimate.encoders.tower import TextTower

            self._tower = TextTower(self.model, self.token_ids, self.text_features)
        return self._tower
