"""The three algorithms as RobustCheck 1.1.0 writes them, one image at a time, drawing from our streams."""

import numpy as np
import torch

from windtunnel.assessments.queries.search import MIN_BATCH, uniforms


class Draws:
    """The draws of one stream, one after another."""

    def __init__(self, seed):
        self.seed, self.place = seed, 0

    def __call__(self):
        self.place += 1
        return float(uniforms(self.seed.view(1), torch.tensor([self.place - 1]), 1))


def predict(module, images):
    """Probabilities, in a batch of at least MIN_BATCH, as the search asks."""
    batch = torch.stack([*images, *[images[-1]] * max(0, MIN_BATCH - len(images))])
    with torch.inference_mode():
        return module(batch).softmax(1)[: len(images)].numpy()


def evoba(module, image, label, seed, *, generation_size, pixels, generations):
    """(image, queries, broken)."""
    draw, (channels, height, width) = Draws(seed), image.shape
    parent, probabilities, queries = image.clone(), predict(module, [image])[0], 1
    for _ in range(generations):
        offspring = []
        for _ in range(generation_size):
            child = parent.clone()
            for _ in range(pixels):
                i, j = divmod(int(draw() * height * width), width)
                for channel in range(channels):
                    child[channel, i, j] = draw()
            offspring.append(child)
        answers = predict(module, offspring)
        queries += generation_size
        best = int(np.argmin(answers[:, label]))
        parent, probabilities = offspring[best], answers[best]
        if np.argmax(probabilities) != label:
            return parent, queries, True
    return parent, queries, False


def eps_greedy(module, image, label, seed, groups, *, epsilon, steps):
    """(image, queries, broken)."""
    draw, (channels, _, width) = Draws(seed), image.shape
    current, probabilities, queries = image.clone(), predict(module, [image])[0], 1
    values, counts = np.zeros(len(groups)), np.zeros(len(groups))
    for _ in range(steps):
        explores, which, pixel = draw() <= epsilon, draw(), draw()
        best = np.flatnonzero(values == values.max())
        group = int(which * len(groups)) if explores else int(best[int(which * len(best))])
        i, j = divmod(int(groups[group][int(pixel * len(groups[group]))]), width)
        candidate = current.clone()
        for channel in range(channels):
            candidate[channel, i, j] = draw()
        answer = predict(module, [candidate])[0]
        queries += 1
        reward = float(probabilities[label] - answer[label])
        counts[group] += 1
        values[group] += (reward - values[group]) / counts[group]
        if reward > 0:
            current, probabilities = candidate, answer
        if np.argmax(probabilities) != label:
            return current, queries, True
    return current, queries, False


def simba(module, image, label, seed, *, step_size, steps):
    """(image, queries, broken); pixel basis over all values."""
    keys = uniforms(seed.view(1), torch.tensor([0]), image.numel())[0].numpy()
    current, probabilities, queries = image.clone(), predict(module, [image])[0], 1
    for direction in np.argsort(keys, kind="stable")[:steps]:
        for sign in (1.0, -1.0):
            candidate = current.clone()
            flat = candidate.view(-1)
            flat[direction] = (flat[direction] + sign * step_size).clamp(0, 1)
            answer = predict(module, [candidate])[0]
            queries += 1
            if answer[label] < probabilities[label]:
                current, probabilities = candidate, answer
                break
        if np.argmax(probabilities) != label:
            return current, queries, True
    return current, queries, False
