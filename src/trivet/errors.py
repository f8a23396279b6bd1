"""The exception tree. A message says which call, what it got and what it wanted.

TrivetError
├── InputError            (ValueError)            an argument is wrong
│   ├── ShapeError                                shapes do not fit the operation
│   └── DTypeError        (TypeError)             dtypes do not fit the operation
├── UnsupportedError      (NotImplementedError)   known, but this build or backend does not have it
├── DeviceError           (RuntimeError)
│   ├── DeviceUnavailable                         asked for, not there; the message says why
│   └── DeviceMismatch                            one operation, tensors on two devices
├── FileError             (ValueError)            a file is not what it claims; names the field
│   ├── GGUFError
│   ├── SafetensorsError
│   ├── PlanError
│   └── CheckpointError                           of a training run: not one, or not as it was saved
├── HubError              (RuntimeError)          a model hub did not give what was asked; says what to do
├── TokenizerError        (ValueError)
├── TemplateError         (ValueError)            a chat template failed, looped or reached out
├── ModelError            (ValueError)            metadata and tensors do not make a known model
├── CapacityError         (RuntimeError)          context, pages or memory are full
├── NonFiniteError        (ArithmeticError)       a value that had to be finite was not
├── Cancelled             (RuntimeError)          the caller asked a running call to stop
└── InternalError         (RuntimeError)          a fault in trivet itself; please report it
"""


class TrivetError(Exception):
    """Base of every error trivet raises."""


class InputError(TrivetError, ValueError):
    """An argument is wrong."""


class ShapeError(InputError):
    """Shapes do not fit the operation."""


class DTypeError(InputError, TypeError):
    """Dtypes do not fit the operation."""


class UnsupportedError(TrivetError, NotImplementedError):
    """The thing is known, but this build, backend or file version does not have it."""


class DeviceError(TrivetError, RuntimeError):
    """A device could not be used."""


class DeviceUnavailable(DeviceError):
    """The device asked for is not there; the message says why."""


class DeviceMismatch(DeviceError):
    """One operation was given tensors on different devices."""


class FileError(TrivetError, ValueError):
    """A file is not what it claims to be; the message names the field."""


class GGUFError(FileError):
    """A GGUF file is malformed."""


class SafetensorsError(FileError):
    """A safetensors file is malformed."""


class PlanError(FileError):
    """Plan bytes are malformed or do not verify."""


class CheckpointError(FileError):
    """A checkpoint of a training run is not one, or is not as it was saved."""


class HubError(TrivetError, RuntimeError):
    """A model hub, or its cache here, did not have or give what was asked; the message says what to do."""


class TokenizerError(TrivetError, ValueError):
    """A tokenizer could not be built, or was given an id it does not have."""


class TemplateError(TrivetError, ValueError):
    """A chat template failed, ran past its limits, or reached for something it may not."""


class ModelError(TrivetError, ValueError):
    """Metadata and tensors do not make a model trivet knows."""


class CapacityError(TrivetError, RuntimeError):
    """Context, pages or memory are full."""


class NonFiniteError(TrivetError, ArithmeticError):
    """A value that had to be finite was not; nothing was changed."""


class Cancelled(TrivetError, RuntimeError):
    """The caller asked a running call to stop."""


class InternalError(TrivetError, RuntimeError):
    """A fault in trivet itself; please report it."""


#: tv_status in trivet.h -> exception. Numbers are never reused.
BY_STATUS: dict[int, type[TrivetError]] = {
    1: InputError,
    2: ShapeError,
    3: DTypeError,
    4: UnsupportedError,
    5: GGUFError,
    6: PlanError,
    7: TokenizerError,
    8: ModelError,
    9: CapacityError,
    10: NonFiniteError,
    11: FileError,  # the operating system refused: open, read, map
    12: DeviceUnavailable,
    13: InternalError,
    14: Cancelled,
    15: CapacityError,  # out of memory
    16: TemplateError,
}
