"""The paper's tables and figures by name, one recipe a file."""

from acclimate.bench.reproduce import (
    alpha_beta,
    caches,
    capacity,
    cross_domain,
    efficiency,
    entropy_range,
    mask_threshold,
    ood,
)
from acclimate.bench.reproduce.recipe import Recipe

_ALL: tuple[Recipe, ...] = (
    ood.RECIPE,
    efficiency.RECIPE,
    cross_domain.RECIPE,
    caches.RECIPE,
    capacity.RECIPE,
    entropy_range.RECIPE,
    mask_threshold.RECIPE,
    alpha_beta.RECIPE,
)
RECIPES: dict[str, Recipe] = {recipe.name: recipe for recipe in _ALL}
