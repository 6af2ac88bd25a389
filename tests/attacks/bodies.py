"""Hostile JSON: cheap to send, dear to parse."""

import json
from base64 import b64encode

MB = 2**20


def repeated(before, item, after, size):
    """Return a body of about this many bytes: an item, again and again, between two ends."""
    return before + item * (size // len(item)) + after


def images_of(*contents):
    return json.dumps({"images": [b64encode(each).decode() for each in contents]}).encode()


def long_lists(size):
    """Return lists of wrong or endless items, by the route that would read them."""
    ones = repeated(b'{"images":[1', b",1", b"]}", size)
    task = repeated(b'{"inputs":"","parameters":{"candidate_labels":[1', b",1", b"]}}", size)
    return {
        "/v1/streams/mallory/classify": [
            ones,
            repeated(b'{"images":[""', b',""', b"]}", size),
            repeated(b'{"images":["', b"\\u0041", b'"]}', size),
            repeated(b'{"images":', b"[", b"", size // 8),
            repeated(b'{"images":[]', b',"a":1', b"}", size),
        ],
        "/classify": [task, task.replace(b"1,1", b'"",', 1)],
        "/v1/streams": [
            repeated(b'{"name":"mallory-2","labels":[1', b",1", b"]}", size),
            b'{"name":"mallory-2","labels":["a","b"]'
            + b"".join(b',"k%d":1' % i for i in range(min(size, 20 * MB) // 12))
            + b"}",
            b'{"name":"mallory-2","labels":["a","b"],"settings":{"a":{}'
            + b"".join(b',"k%d":[]' % i for i in range(min(size, 2 * MB) // 13))
            + b"}}",
        ],
    }


LONE = "\\ud800"  # a surrogate without its other half
SURROGATES = {
    "/v1/streams": [
        f'{{"name":"mallory-3","labels":["cat","{LONE}"]}}',
        f'{{"name":"mallory-3","labels":["cat","dog"],"templates":"{LONE}{{}}"}}',
        f'{{"name":"mallory-3","labels":["cat","dog"],"templates":["a {{}}","{LONE}{{}}"]}}',
        f'{{"name":"mallory-3","labels":["cat","dog"],"settings":{{"{LONE}":1}}}}',
        f'{{"name":"mallory-3","labels":["cat","dog"],"settings":{{"alpha":"{LONE}"}}}}',
        f'{{"name":"mallory-3","labels":["cat","dog"],"method":"{LONE}"}}',
    ],
    "/classify": [
        f'{{"inputs":"%s","parameters":{{"candidate_labels":["cat","{LONE}"]}}}}',
        f'{{"inputs":"%s","parameters":{{"candidate_labels":["cat","dog"],"hypothesis_template":"{LONE}{{}}"}}}}',
        f'{{"inputs":"{LONE}","parameters":{{"candidate_labels":["cat","dog"]}}}}',
    ],
}
