"""The samplers by their definitions, slow and plain: logits in, {token: probability} out.

Where a paper leaves something open, llama.cpp's choice is followed (src/llama-sampler.cpp).
"""

import numpy as np

Logits = dict[int, float]


def softmax(logits: Logits) -> dict[int, float]:
    top = max(logits.values())
    weights = {token: float(np.exp(value - top)) for token, value in logits.items()}
    total = sum(weights.values())
    return {token: weight / total for token, weight in weights.items()}


def ranked(logits: Logits) -> list[int]:
    return sorted(logits, key=lambda token: -logits[token])


def keep(logits: Logits, tokens: object) -> Logits:
    return {token: logits[token] for token in tokens}  # type: ignore[attr-defined]


def temperature(logits: Logits, t: float) -> Logits:
    return {token: value / t for token, value in logits.items()}


def top_k(logits: Logits, k: int) -> Logits:
    return keep(logits, ranked(logits)[:k])


def top_p(logits: Logits, p: float) -> Logits:
    probabilities, total, kept = softmax(logits), 0.0, []
    for token in ranked(logits):
        kept.append(token)
        total += probabilities[token]
        if total >= p:
            break
    return keep(logits, kept)


def min_p(logits: Logits, p: float) -> Logits:
    least = max(logits.values()) + float(np.log(p))
    return keep(logits, [token for token in logits if logits[token] >= least])


def typical(logits: Logits, p: float) -> Logits:
    probabilities = softmax(logits)
    entropy = -sum(q * np.log(q) for q in probabilities.values())
    distance = {token: abs(-np.log(q) - entropy) for token, q in probabilities.items()}
    total, kept = 0.0, []
    for token in sorted(logits, key=lambda token: distance[token]):
        kept.append(token)
        total += probabilities[token]
        if total > p:
            break
    return keep(logits, kept)


def top_n_sigma(logits: Logits, n: float) -> Logits:
    values = np.array(list(logits.values()))
    least = values.max() - n * values.std()
    return keep(logits, [token for token in logits if logits[token] >= least])


def dynamic_temperature(logits: Logits, t: float, width: float, exponent: float) -> Logits:
    probabilities = softmax(logits)
    entropy = -sum(q * np.log(q) for q in probabilities.values() if q > 0)
    low, high = max(0.0, t - width), t + width
    share = (entropy / np.log(len(logits))) ** exponent
    return temperature(logits, float(low + (high - low) * share))


def penalties(logits: Logits, recent: list[int], repeat: float, presence: float, frequency: float) -> Logits:
    changed = dict(logits)
    for token in set(recent):
        value = changed[token]
        value = value * repeat if value <= 0 else value / repeat
        changed[token] = value - recent.count(token) * frequency - presence
    return changed


def xtc(logits: Logits, threshold: float) -> Logits:
    probabilities = softmax(logits)
    above = [token for token in ranked(logits) if probabilities[token] >= threshold]
    return keep(logits, [token for token in logits if token not in above[:-1]])


def dry(logits: Logits, recent: list[int], multiplier: float, base: float, allowed: int) -> Logits:
    """Penalize each token that would lengthen a repetition of the text's end, by the length repeated so far."""
    longest: dict[int, int] = {}
    for at in range(len(recent) - 1):
        length = 0
        while length <= at and recent[at - length] == recent[len(recent) - 1 - length]:
            length += 1
        follower = recent[at + 1]
        if length >= allowed:
            longest[follower] = max(longest.get(follower, 0), length)
    return {
        token: value - (multiplier * base ** (longest[token] - allowed) if token in longest else 0)
        for token, value in logits.items()
    }


def mirostat_v2(logits: Logits, mu: float) -> Logits:
    probabilities = softmax(logits)
    kept = [token for token in ranked(logits) if -np.log2(probabilities[token]) <= mu]
    return keep(logits, kept or ranked(logits)[:1])
