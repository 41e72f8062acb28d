"""Embedding, indexing and mining in a Ray cluster, shard by shard. Reruns skip finished shards.

All machines of the cluster share the folders in which workers write their shards. Ray transfers
only tasks and small results.
"""

from fairseq_lxsr.cluster.embed import Embedding, embed_shards
from fairseq_lxsr.cluster.index import index_shards
from fairseq_lxsr.cluster.mine import Corpus, mine_shards
from fairseq_lxsr.cluster.shards import SHARD_LINES, Shard
from fairseq_lxsr.cluster.workers import Cluster, Workers, connect

__all__ = [
    "SHARD_LINES",
    "Cluster",
    "Corpus",
    "Embedding",
    "Shard",
    "Workers",
    "connect",
    "embed_shards",
    "index_shards",
    "mine_shards",
]
