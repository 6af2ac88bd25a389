"""Calls of streams in tests."""


def names(streams):
    """Return the names of all streams, usable or not."""
    return [each["name"] for each in streams.describe()]


def classify(client, name, *images, **parameters):
    """Classify images over HTTP; return their results."""
    files = [("image", each) for each in images]
    answer = client.post(f"/v1/streams/{name}/classify", files=files, params=parameters)
    assert answer.status_code == 200, answer.text
    return answer.json()["results"]
