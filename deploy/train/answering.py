"""Lets the target answer many questions at once, through the very engine that serves it, and remembers the answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from deploy.train.corpus import Corpus, Question, TokenIds
from fleet.clock import SystemClock
from fleet.config import EngineConfig
from fleet.errors import FleetError
from fleet.generation import GenerationRequest, SamplingParams, StreamFailed
from fleet.tokenizer import Tokenizer
from replicas.engine.loop import Engine
from replicas.engine.model import Model
from replicas.engine.sampling import Sampler
from replicas.engine.step import StepRunner

OWNER = "train"
UNDER_WAY = 2
"""Questions in the engine for each that it answers at once, so that none of its places stays empty."""


class Answerer:
    """Asks the memo first, the model for the rest; whatever is answered is kept, also when the run is interrupted."""

    def __init__(self, model: Model, tokenizer: Tokenizer, corpus: Corpus, batch: int) -> None:
        """`batch` questions are under way at once."""
        config = EngineConfig(
            max_num_seqs=batch, max_num_batched_tokens=max(256, 8 * batch), max_waiting=UNDER_WAY * batch
        )
        sampler = Sampler(min(model.vocab_size, tokenizer.vocab_size), tokenizer.eos_token_ids)
        runner = StepRunner(model, sampler)
        self._engine = Engine(model, tokenizer, config, runner=runner, speculator=None, clock=SystemClock())
        self._corpus = corpus
        self._batch = batch

    def unanswered(self, questions: Iterable[Question]) -> list[Question]:
        """The different ones that the memo does not know."""
        found = {question.key: question for question in questions if self._corpus.get(question) is None}
        return list(found.values())

    def answer(self, questions: Sequence[Question], progress: Callable[[int, int], None]) -> list[TokenIds]:
        """Answers in the order of the questions; `progress` gets how many are answered now, and their tokens."""
        missing = self.unanswered(questions)
        progress(len(questions) - len(missing), 0)
        try:
            self._generate(missing, progress)
        finally:
            self._corpus.flush()
        answers = [self._corpus.get(question) for question in questions]
        return [answer for answer in answers if answer is not None]

    def _generate(self, questions: Sequence[Question], progress: Callable[[int, int], None]) -> None:
        waiting = list(enumerate(questions))[::-1]
        under_way: dict[str, list[int]] = {}
        while waiting or under_way:
            while waiting and len(under_way) < UNDER_WAY * self._batch:
                index, question = waiting.pop()
                under_way[str(index)] = []
                self._engine.submit(_request(str(index), question), OWNER)
            for output in self._engine.step().get(OWNER, ()):
                if isinstance(output, StreamFailed):
                    raise FleetError(f"the target cannot answer a prompt: {output.message}")
                under_way[output.request_id] += output.token_ids
                if output.finish is not None:
                    answer = np.asarray(under_way.pop(output.request_id), np.int32)
                    self._corpus.add(questions[int(output.request_id)], answer)
                    progress(1, len(answer))


def _request(request_id: str, question: Question) -> GenerationRequest:
    sampling = SamplingParams(seed=question.seed, max_tokens=question.max_tokens, temperature=question.temperature)
    return GenerationRequest(request_id, question.prompt, sampling)
