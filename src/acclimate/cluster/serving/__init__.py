"""The service on Ray Serve: stateless encoder replicas, one actor per stream, and the same application.

A request arrives at a replica of `Front`, which runs `acclimate.serve.app`. It asks the `StreamActor` of the stream,
and that asks the replicas of `Encoders`; images travel from the front to an encoder, past the actor. What a stream has
learnt lies on a file system that all machines see, in the same files as those of `acclimate serve`.
"""
