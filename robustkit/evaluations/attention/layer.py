"""What records have for the heads of one layer."""

METRICS = (
    *("largest_logit", "query_norm", "key_norm"),
    *("attention_entropy", "entropy_share", "strongest_key", "softmax_slope"),
)
"""A figure per sample: the largest |logit| of all heads, and means over all heads of all layers. Entropy is in nats,
and as a share of log N, which it is over N keys where attention is even. The strongest key is its share of attention.
The softmax slope is the spectral norm of softmax's Jacobian, a mean over queries.
"""

LISTS = ("largest_logits", "query_norms", "key_norms", "attention_entropies", "strongest_keys", "softmax_slopes")
"""The same for each head of each layer: means over its tokens, and the largest logit."""
