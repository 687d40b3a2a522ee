"""`fleet train`: from settings to published files, with everything between them resumable."""

from __future__ import annotations

from pathlib import Path

from deploy.train.acceptance import Acceptance
from deploy.train.batches import plan_steps
from deploy.train.card import ModelCard
from deploy.train.checkpoint import CheckpointFile
from deploy.train.estimate import estimate
from deploy.train.gather import gather
from deploy.train.lesson import Lesson, make_lesson
from deploy.train.loop import Plan, Trainer
from deploy.train.measuring import measure
from deploy.train.metrics_log import MetricsLog
from deploy.train.plot import plot
from deploy.train.progress import TrainingProgress, accepted, measured_line
from deploy.train.publish import file_bytes, publish, published
from deploy.train.screen import Screen
from deploy.train.settings import TrainSettings
from deploy.train.target import load_target
from deploy.train.trainee import Method
from fleet.errors import ConfigError
from replicas.heads.checkpoint import Checkpoint

CHECKPOINT_FILE = "training/checkpoint.pt"
METRICS_FILE = "metrics.jsonl"
PLOT_FILE = "training.png"
CARD_FILE = "README.md"


def train(method: Method, settings: TrainSettings, screen: Screen, command: str) -> None:
    """Answer, train, publish and measure; or only say what that would take."""
    target = load_target(settings, method.taps, screen.say)
    if settings.dry_run:
        screen.say("timing answers, hidden states and steps of training")
        for line in estimate(method, settings, target):
            screen.say(line)
        return
    _make_folder(settings.out)
    vocabulary_size = method.vocabulary_size(int(target.weights.embedding.shape[0]))
    lesson = make_lesson(settings, target, gather(settings, target, screen), vocabulary_size)
    screen.say(lesson.summary)
    log = MetricsLog(settings.out / METRICS_FILE)
    checkpoint = learn(method, settings, lesson, log, screen)
    publish(checkpoint, settings.out)
    acceptance = _measure_published(method, settings, lesson)
    plot(log.lines(), f"{method.name} for {target.name}", settings.out / PLOT_FILE)
    card = _card(method, settings, lesson, acceptance)
    (settings.out / CARD_FILE).write_text(card.render(command, file_bytes(checkpoint)))
    screen.say(f"published, on all held-out answers: {accepted(measured_line(acceptance))}")
    screen.say(f"wrote {settings.out} ({file_bytes(checkpoint) / 1e6:.1f} MB)")


def _make_folder(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out {out} cannot be written to: {error.strerror}") from error


def learn(method: Method, settings: TrainSettings, lesson: Lesson, log: MetricsLog, screen: Screen) -> Checkpoint:
    """Take all steps that are not done yet; the trained tensors in float32."""
    weights, taught = lesson.target.weights, lesson.taught
    checkpoint = method.initial(weights, lesson.vocabulary)
    trainee = method.trainee(checkpoint, weights, lesson.vocabulary)
    lengths = [len(example.tokens) for example in taught]
    plan = Plan(
        plan_steps(lengths, settings.batch_tokens, settings.epochs, settings.seed),
        lambda indexes: lesson.pack([taught[index] for index in indexes]),
    )
    some = lesson.held_out[: settings.evaluate_answers]
    state = CheckpointFile(settings.out / CHECKPOINT_FILE, lesson.identity(settings))
    trainer = Trainer(trainee, checkpoint.tensors, plan, settings, state)
    with screen.bar(f"training {method.name}", len(plan.steps)) as advance:
        trainer.run(
            log,
            lambda: measured_line(measure(trainee, some, lesson.pack, settings.batch_tokens)),
            TrainingProgress(screen, advance),
        )
    return checkpoint


def _measure_published(method: Method, settings: TrainSettings, lesson: Lesson) -> Acceptance:
    """Of the files as others will read them, rounded to bfloat16."""
    weights = lesson.target.weights
    trainee = method.trainee(published(settings.out, weights.device), weights, lesson.vocabulary)
    return measure(trainee, lesson.held_out, lesson.pack, settings.batch_tokens)


def _card(method: Method, settings: TrainSettings, lesson: Lesson, acceptance: Acceptance) -> ModelCard:
    sources = [file.name for file in settings.prompts]
    if settings.generate:
        sources.append(f"{settings.generate} user turns that the target made up")
    return ModelCard(
        method=method.name,
        target=lesson.target.name,
        target_digest=lesson.target.weights.digest,
        license=settings.license,
        data=(
            f"Learnt the target's own answers to {', '.join(sources)}, drawn at temperatures "
            f"{', '.join(map(str, settings.temperatures))}: {len(lesson.taught)} answers, {lesson.tokens} tokens with "
            f"their prompts, {settings.epochs} passes."
        ),
        vocabulary=f"The {lesson.coverage}",
        held_out_answers=len(lesson.held_out),
        acceptance=acceptance,
    )
