"""From a configuration to everything that answers requests."""

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from jinja2.exceptions import TemplateError

from daemon.chat import TurnDelimiters, find_delimiters
from daemon.config import Config
from daemon.flags import UsageError
from daemon.logs import logger
from daemon.model import ServedModel, describe, served_name
from daemon.model_source import with_local_model
from daemon.rope import rope_overrides
from daemon.settings import Defaults
from daemon.templates import CHATML, AnyTemplate, BrokenTemplate, ChatTemplate
from daemon.text import encode_text
from runtime.engine.config import EngineConfig
from runtime.engine.resume import CheckpointPolicy, Eviction
from runtime.memory.layout import MemoryLayout
from runtime.memory.sizing import affordable_context, pool_size
from runtime.model import LoadedModel, ModelOptions, load_model
from runtime.pooling import Pooling
from runtime.readout import Readout

Report = Callable[[str, float], None]

_MOST_POINT_BYTES = 2 << 30


@dataclass(frozen=True, slots=True)
class Prepared:
    """A loaded model and what is derived from it once."""

    loaded: LoadedModel
    model: ServedModel
    template: AnyTemplate
    delimiters: TurnDelimiters
    defaults: Defaults
    engine: EngineConfig
    readout: Readout | None = None


def prepare(config: Config, report: Report) -> Prepared:
    """Fetch the model if it is not a local file, and load it. Takes seconds: call it in a thread.

    `report(stage, share)` tells the progress. Raises RuntimeFault, FetchError, OSError and UsageError.
    """
    config = with_local_model(config, report)
    options = ModelOptions(
        n_ctx=config.n_ctx // config.n_parallel if config.n_ctx else 0,
        n_ubatch=min(config.n_ubatch, config.n_batch),
        n_threads=config.threads,
        n_threads_batch=config.threads_batch,
        repack=config.repack,
        max_runs=config.n_parallel,
        max_outputs=config.n_parallel,
        key_type=config.cache_type_k,
        value_type=config.cache_type_v,
        rotate_k=config.rotate_k,
        rotate_v=config.rotate_v,
        embeddings=config.embeddings or config.reranking,
        overrides=(*rope_overrides(config), *config.override_kv),
    )
    loaded = load_model(Path(config.model), options, report)
    try:
        prepared = _derive(config, loaded)
    except BaseException:
        loaded.close()
        raise
    # What was loaded stays; looking for garbage in its 180,000 objects again and again would stop all
    # threads, each time for about 0.1 s.
    gc.collect()
    gc.freeze()
    return prepared


def _derive(config: Config, loaded: LoadedModel) -> Prepared:
    layout = loaded.runner.layout
    n_ubatch, n_ctx_train = loaded.runner.n_ubatch, loaded.n_ctx_train
    n_ctx, why = config.slot_context(
        n_ctx_train, lambda n_bytes: affordable_context(layout, n_ubatch, n_bytes, n_ctx_train)
    )
    if why:
        logger().info(why)
    if n_ctx > n_ctx_train:
        logger().warning(f"slots of {n_ctx} tokens exceed the {n_ctx_train} the model was trained with")
    model = serve_model(config, loaded, n_ctx)
    template = choose_template(config, model)
    tokenizer = model.tokenizer
    return Prepared(
        loaded=loaded,
        model=model,
        template=template,
        delimiters=find_delimiters(template, tokenizer),
        defaults=Defaults(
            config, tokenizer.n_vocab, lambda text: encode_text(text, tokenizer, add_special=False)
        ),
        engine=engine_config(config, layout, n_ctx, n_ubatch),
        readout=choose_readout(config, loaded),
    )


def serve_model(config: Config, loaded: LoadedModel, n_ctx: int) -> ServedModel:
    file = loaded.file
    name = served_name(config)
    return ServedModel(
        name=name,
        aliases=config.aliases or (name,),
        tags=tuple(tag.strip() for tag in config.tags.split(",") if tag.strip()),
        path=config.model,
        meta=describe(file, n_params=file.n_params, size=file.n_bytes, ftype=file.file_type),
        n_ctx=n_ctx,
        tokenizer=loaded.tokenizer,
        template=file.get_str("tokenizer.chat_template", ""),
        template_rerank=file.get_str("tokenizer.chat_template.rerank", ""),
        template_tool_use=file.get_str("tokenizer.chat_template.tool_use", ""),
        created=int(time.time()),
    )


def choose_readout(config: Config, loaded: LoadedModel) -> Readout | None:
    """How rows become embeddings; None for a model that generates. Raises ModelError when it cannot rank."""
    if not loaded.embeddings:
        return None
    if config.reranking:
        return loaded.readout(Pooling.RANK)
    return loaded.readout(Pooling(config.pooling) if config.pooling else None)


def choose_template(config: Config, model: ServedModel) -> AnyTemplate:
    """--chat-template-file, else --chat-template, else the model's own, else ChatML.

    Raises UsageError when the user's choice cannot be used; a broken one of the model only refuses chats.
    """
    given, flag = config.chat_template, "--chat-template"
    if config.chat_template_file:
        flag = "--chat-template-file"
        given = Path(config.chat_template_file).read_text(encoding="utf-8")
    if given:
        try:
            return ChatTemplate(CHATML if given == "chatml" else given, model.bos_text, model.eos_text)
        except TemplateError as error:
            raise UsageError(f"{flag}: {error.message}") from None
    if not model.template:
        return ChatTemplate(CHATML, model.bos_text, model.eos_text)
    try:
        return ChatTemplate(model.template, model.bos_text, model.eos_text)
    except TemplateError as error:
        logger().warning("the model's chat template cannot be used", reason=error.message)
        return BrokenTemplate(model.template, str(error.message))


def engine_config(config: Config, layout: MemoryLayout, n_ctx: int, n_ubatch: int) -> EngineConfig:
    """The pool holds every slot's context, and as many prefixes beyond as --ram-budget allows.

    Of the budget, points of a model with a tail may take a quarter, and what slots have of it comes off too.
    """
    budget, point_bytes, tail = config.ram_budget, 0, layout.tail
    if tail is not None:
        point_bytes = min(_MOST_POINT_BYTES, budget // 4)
        budget -= tail.memory_bytes(config.n_parallel, point_bytes)
    size = pool_size(layout, config.n_parallel, n_ctx, n_ubatch, budget)
    return EngineConfig(
        n_slots=config.n_parallel,
        n_ctx=n_ctx,
        n_blocks=size.n_blocks,
        pool_bytes=size.max_bytes,
        lent_bytes=size.spare_bytes,
        similarity=config.slot_prompt_similarity,
        max_queue=config.n_parallel + config.queue_size,
        checkpoints=CheckpointPolicy(
            config.ctx_checkpoints,
            config.ctx_checkpoints_interval,
            config.ctx_checkpoints_tolerance,
            Eviction(config.ctx_checkpoints_eviction),
        ),
        point_bytes=point_bytes,
    )
