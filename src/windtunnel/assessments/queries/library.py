"""Black-box attacks of other libraries with their queries counted, image by image.

A library calls the model on batches, and what it does for one image may depend on the others in it; so each image is
attacked alone, and its queries are its own. The model it is given counts them, sees at once when one of them is a
success within the budget, and ends the attack there: an adversary who has an example asks no more.
"""

import torch
from torch import Tensor, nn

from windtunnel.assessments.attacks.adapters import Adapter, Request, perturb_by_label
from windtunnel.assessments.attacks.evaluate import project
from windtunnel.assessments.attacks.gradients import ModelWrapper
from windtunnel.assessments.queries.search import QueryTask, State
from windtunnel.core.classifier import Classifier
from windtunnel.core.distances import distance, within
from windtunnel.core.seeds import seeded


class _Stop(Exception):
    """Ends a library's attack from inside its call of the model."""


class Metered(ModelWrapper):
    """The model as one image's attack sees it.

    queries: made so far, the clean check among them. image, logits: the adversarial example; until there is one, the
    query of the lowest loss within the budget, at first the clean image. Raises _Stop at a success, and before `max_queries` is passed.
    """

    def __init__(self, model: nn.Module, task: QueryTask, index: int) -> None:
        super().__init__(model)
        self._task, self._index = task, torch.tensor([index])
        self._clean = task.images[index : index + 1]
        self.image, self.logits = self._clean, task.logits[index : index + 1]
        self._loss = float(task.goal.loss(self.logits[:, None], self._index))
        self.queries, self.succeeded = 1, False

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits, (n, K)."""
        limit = self._task.max_queries
        if limit is not None and self.queries + len(inputs) > limit:
            raise _Stop
        logits: Tensor = self.model(inputs)
        self.queries += len(inputs)
        self._look(inputs.detach().float().cpu(), logits.detach().float().cpu())
        if self.succeeded:
            raise _Stop
        return logits

    def _look(self, inputs: Tensor, logits: Tensor) -> None:
        task, indices = self._task, self._index.expand(len(inputs))
        flat = inputs.flatten(1)
        valid = (flat >= 0).all(1) & (flat <= 1).all(1)  # what is no image is no adversarial example
        if task.budget.epsilon is not None:
            valid &= within(distance(task.budget.norm, inputs, self._clean.expand_as(inputs)), task.budget.epsilon)
        reached = valid & task.goal.reached(logits, indices)
        losses = task.goal.loss(logits[:, None], indices)[:, 0].masked_fill(
            ~(reached if reached.any() else valid), torch.inf
        )
        best = int(losses.argmin())
        self.succeeded = bool(reached.any())
        if self.succeeded or float(losses[best]) < self._loss:
            # Copies: some libraries go on writing into the tensor they asked about.
            self.image, self.logits = inputs[best : best + 1].clone(), logits[best : best + 1].clone()
            self._loss = float(losses[best])


def attack_counted(classifier: Classifier, adapter: Adapter, request: Request, task: QueryTask, index: int) -> State:
    """Run one image's attack to its success or end; its last query checks the returned image."""
    metered = Metered(classifier.module, task, index)
    with seeded(request.seed):
        try:
            returned = perturb_by_label(request, metered, adapter, classifier.criterion).detach().clamp(0, 1)
            if request.budget.epsilon is not None:
                returned = project(request.budget.norm, request.budget.epsilon, returned, request.inputs)
            metered(returned)
        except _Stop:
            pass
    return {
        "index": torch.tensor([index]),
        "image": metered.image,
        "logits": metered.logits,
        "queries": torch.tensor([metered.queries]),
        "succeeded": torch.tensor([metered.succeeded]),
    }
