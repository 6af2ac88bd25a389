"""A machine is lost: its streams go on elsewhere, with everything that was acknowledged."""

import time

import ray


def node_of(actor):
    return ray.get(actor.__ray_call__.remote(lambda _: ray.get_runtime_context().get_node_id()), timeout=60)


def send(cluster, name, image):
    """Send an image until it is acknowledged."""
    answer = cluster.classify(name, [image])
    while answer.status_code != 200:
        assert answer.status_code in (500, 503), answer.text  # 500 is of Ray Serve's proxy, for a front that is lost
        time.sleep(0.1)
        answer = cluster.classify(name, [image])


def test_the_streams_of_a_lost_node_go_on_elsewhere(cluster, ray_cluster, nodes, pictures):
    names = [f"camera-{i}" for i in range(4)]
    for name in names:
        cluster.create(name, method="prior", skip_duplicates=False, guard=None)
    for name in names * 3:
        send(cluster, name, pictures[0])
    before = {name: node_of(cluster.actor(name)) for name in names}
    lost = next(node for node in before.values() if node in nodes)  # streams are spread over the nodes
    ray_cluster.remove_node(nodes[lost])
    for name in names * 3:
        send(cluster, name, pictures[0])
    assert lost not in {node_of(cluster.actor(name)) for name in names}
    for name in names:
        seen = cluster.client.get(f"/v1/streams/{name}").json()["samples_seen"]
        assert 6 <= seen <= 7  # one that was under way may have been learnt, not acknowledged, and sent again
        cluster.client.delete(f"/v1/streams/{name}").raise_for_status()
