"""Methods of a user's own files on other machines, which do not have the files."""

import sys

from acclimate.methods.registry import loaded_plugins


def send_plugins() -> None:
    """From now on, Ray sends objects of the plugins that were loaded here together with their code.

    What a plugin imports must be installed on every node.
    """
    from ray import cloudpickle

    files = set(map(str, loaded_plugins()))
    for module in list(sys.modules.values()):
        if getattr(module, "__file__", None) in files:
            cloudpickle.register_pickle_by_value(module)
