from fleet.tokens_v1 import tokens_pb2 as _tokens_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DraftFrame(_message.Message):
    __slots__ = ("hello", "proposals", "resync", "exhausted")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    PROPOSALS_FIELD_NUMBER: _ClassVar[int]
    RESYNC_FIELD_NUMBER: _ClassVar[int]
    EXHAUSTED_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    proposals: Proposals
    resync: Resync
    exhausted: Exhausted
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., proposals: _Optional[_Union[Proposals, _Mapping]] = ..., resync: _Optional[_Union[Resync, _Mapping]] = ..., exhausted: _Optional[_Union[Exhausted, _Mapping]] = ...) -> None: ...

class TargetFrame(_message.Message):
    __slots__ = ("welcome", "refused", "open", "verdicts", "close")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    VERDICTS_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    refused: Refused
    open: Open
    verdicts: Verdicts
    close: Close
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., refused: _Optional[_Union[Refused, _Mapping]] = ..., open: _Optional[_Union[Open, _Mapping]] = ..., verdicts: _Optional[_Union[Verdicts, _Mapping]] = ..., close: _Optional[_Union[Close, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("protocol_version", "tokenizer_hash", "vocab_size", "model", "revision", "max_model_len", "max_draft_tokens", "names_distributions")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_HASH_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    MAX_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NAMES_DISTRIBUTIONS_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    tokenizer_hash: str
    vocab_size: int
    model: str
    revision: str
    max_model_len: int
    max_draft_tokens: int
    names_distributions: bool
    def __init__(self, protocol_version: _Optional[int] = ..., tokenizer_hash: _Optional[str] = ..., vocab_size: _Optional[int] = ..., model: _Optional[str] = ..., revision: _Optional[str] = ..., max_model_len: _Optional[int] = ..., max_draft_tokens: _Optional[int] = ..., names_distributions: _Optional[bool] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("protocol_version", "model", "draft_ahead", "wants_distributions")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    DRAFT_AHEAD_FIELD_NUMBER: _ClassVar[int]
    WANTS_DISTRIBUTIONS_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    model: str
    draft_ahead: bool
    wants_distributions: bool
    def __init__(self, protocol_version: _Optional[int] = ..., model: _Optional[str] = ..., draft_ahead: _Optional[bool] = ..., wants_distributions: _Optional[bool] = ...) -> None: ...

class Refused(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class Open(_message.Message):
    __slots__ = ("sequence_id", "epoch", "token_ids", "prompt_length", "sampling", "choice_index", "draft_length")
    SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    CHOICE_INDEX_FIELD_NUMBER: _ClassVar[int]
    DRAFT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    sequence_id: int
    epoch: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    prompt_length: int
    sampling: _tokens_pb2.Sampling
    choice_index: int
    draft_length: int
    def __init__(self, sequence_id: _Optional[int] = ..., epoch: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., prompt_length: _Optional[int] = ..., sampling: _Optional[_Union[_tokens_pb2.Sampling, _Mapping]] = ..., choice_index: _Optional[int] = ..., draft_length: _Optional[int] = ...) -> None: ...

class Proposals(_message.Message):
    __slots__ = ("sequence_ids", "epochs", "base_lengths", "token_counts", "token_ids", "draft_seconds", "were_ready", "support_counts", "support_ids", "support_weights")
    SEQUENCE_IDS_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    BASE_LENGTHS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_COUNTS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    WERE_READY_FIELD_NUMBER: _ClassVar[int]
    SUPPORT_COUNTS_FIELD_NUMBER: _ClassVar[int]
    SUPPORT_IDS_FIELD_NUMBER: _ClassVar[int]
    SUPPORT_WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    sequence_ids: _containers.RepeatedScalarFieldContainer[int]
    epochs: _containers.RepeatedScalarFieldContainer[int]
    base_lengths: _containers.RepeatedScalarFieldContainer[int]
    token_counts: _containers.RepeatedScalarFieldContainer[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    draft_seconds: _containers.RepeatedScalarFieldContainer[float]
    were_ready: _containers.RepeatedScalarFieldContainer[bool]
    support_counts: _containers.RepeatedScalarFieldContainer[int]
    support_ids: _containers.RepeatedScalarFieldContainer[int]
    support_weights: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, sequence_ids: _Optional[_Iterable[int]] = ..., epochs: _Optional[_Iterable[int]] = ..., base_lengths: _Optional[_Iterable[int]] = ..., token_counts: _Optional[_Iterable[int]] = ..., token_ids: _Optional[_Iterable[int]] = ..., draft_seconds: _Optional[_Iterable[float]] = ..., were_ready: _Optional[_Iterable[bool]] = ..., support_counts: _Optional[_Iterable[int]] = ..., support_ids: _Optional[_Iterable[int]] = ..., support_weights: _Optional[_Iterable[float]] = ...) -> None: ...

class Resync(_message.Message):
    __slots__ = ("items",)
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[SequenceKey]
    def __init__(self, items: _Optional[_Iterable[_Union[SequenceKey, _Mapping]]] = ...) -> None: ...

class Exhausted(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SequenceKey(_message.Message):
    __slots__ = ("sequence_id", "epoch")
    SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    sequence_id: int
    epoch: int
    def __init__(self, sequence_id: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class Verdicts(_message.Message):
    __slots__ = ("sequence_ids", "epochs", "base_lengths", "accepted", "committed_counts", "committed", "next_draft_lengths")
    SEQUENCE_IDS_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    BASE_LENGTHS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_COUNTS_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    NEXT_DRAFT_LENGTHS_FIELD_NUMBER: _ClassVar[int]
    sequence_ids: _containers.RepeatedScalarFieldContainer[int]
    epochs: _containers.RepeatedScalarFieldContainer[int]
    base_lengths: _containers.RepeatedScalarFieldContainer[int]
    accepted: _containers.RepeatedScalarFieldContainer[int]
    committed_counts: _containers.RepeatedScalarFieldContainer[int]
    committed: _containers.RepeatedScalarFieldContainer[int]
    next_draft_lengths: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, sequence_ids: _Optional[_Iterable[int]] = ..., epochs: _Optional[_Iterable[int]] = ..., base_lengths: _Optional[_Iterable[int]] = ..., accepted: _Optional[_Iterable[int]] = ..., committed_counts: _Optional[_Iterable[int]] = ..., committed: _Optional[_Iterable[int]] = ..., next_draft_lengths: _Optional[_Iterable[int]] = ...) -> None: ...

class Close(_message.Message):
    __slots__ = ("sequence_ids", "reason")
    SEQUENCE_IDS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    sequence_ids: _containers.RepeatedScalarFieldContainer[int]
    reason: str
    def __init__(self, sequence_ids: _Optional[_Iterable[int]] = ..., reason: _Optional[str] = ...) -> None: ...
