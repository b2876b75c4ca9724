"""What the numbers of a language model are."""

from ...evaluations.metrics import Metric, Term, mean_share

METRICS = (
    Metric(
        "perplexity",
        "perplexity",
        better=-1,
        drafted=True,
        hub=("perplexity", "perplexity of a token"),
        least=1,
        also=("ppl",),
    ),
    Metric("word_perplexity", "word perplexity", better=-1, hub=("word_perplexity", "perplexity of a word"), least=1),
    Metric("bits_per_byte", "bits a byte", better=-1, hub=("bits_per_byte", "bits a byte"), least=0),
    Metric("nll", "NLL", better=-1, paired=True, least=0),
    mean_share("token_accuracy", "top-1 % of tokens", hub=("accuracy", "top-1 accuracy of tokens")),
)
TERMS = (
    Term(
        "perplexity",
        "The exponential of the NLL: among how many equally likely tokens a model is as unsure. Of all documents "
        "together. Models with other tokens cannot be compared by it.",
    ),
    Term(
        "word perplexity",
        "The same for each word, which is what stands between blanks: the exponential of the NLL of all tokens over "
        "the number of words.",
    ),
    Term(
        "bits a byte",
        "The NLL of all tokens in bits, over the bytes of the text: what a text could be compressed to. It does not "
        "depend on what a token is.",
    ),
    Term(
        "NLL",
        "Negative log-likelihood: minus the natural logarithm of the probability of the right token, as a mean over "
        "the tokens of all documents.",
    ),
    Term("top-1 % of tokens", "The share of tokens that were the likeliest to come next.", ("top-1 of tokens",)),
)
