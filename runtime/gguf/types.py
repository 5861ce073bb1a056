"""Tensor types of GGUF files: llama.cpp's and ik_llama.cpp's, and how many bytes they take."""

from enum import IntEnum


class GGMLType(IntEnum):
    """A tensor type; the value is its id in the file.

    A row of ``n`` weights takes ``row_meta + n / block * block_bytes`` bytes; `row_meta` bytes at its start
    hold a scale of the whole row. `rows` rows are stored interleaved (1: plain rows).
    """

    block: int
    block_bytes: int
    row_meta: int
    rows: int

    def __new__(cls, id: int, block: int, block_bytes: int, row_meta: int = 0, rows: int = 1) -> "GGMLType":
        member = int.__new__(cls, id)
        member._value_ = id
        member.block = block
        member.block_bytes = block_bytes
        member.row_meta = row_meta
        member.rows = rows
        return member

    F32 = (0, 1, 4)
    F16 = (1, 1, 2)
    Q4_0 = (2, 32, 18)
    Q4_1 = (3, 32, 20)
    Q5_0 = (6, 32, 22)
    Q5_1 = (7, 32, 24)
    Q8_0 = (8, 32, 34)
    Q8_1 = (9, 32, 36)
    Q2_K = (10, 256, 84)
    Q3_K = (11, 256, 110)
    Q4_K = (12, 256, 144)
    Q5_K = (13, 256, 176)
    Q6_K = (14, 256, 210)
    Q8_K = (15, 256, 292)
    IQ2_XXS = (16, 256, 66)
    IQ2_XS = (17, 256, 74)
    IQ3_XXS = (18, 256, 98)
    IQ1_S = (19, 256, 50)
    IQ4_NL = (20, 32, 18)
    IQ3_S = (21, 256, 110)
    IQ2_S = (22, 256, 82)
    IQ4_XS = (23, 256, 136)
    I8 = (24, 1, 1)
    I16 = (25, 1, 2)
    I32 = (26, 1, 4)
    I64 = (27, 1, 8)
    F64 = (28, 1, 8)
    IQ1_M = (29, 256, 56)
    BF16 = (30, 1, 2)
    TQ1_0 = (34, 256, 54)
    TQ2_0 = (35, 256, 66)
    I2_S = (36, 128, 32)
    MXFP4 = (39, 32, 17)
    NVFP4 = (40, 64, 36)
    Q1_0 = (41, 128, 18)
    Q2_0 = (42, 64, 18)

    Q6_0 = (133, 32, 26)
    IQ1_BN = (134, 64, 13, 2)
    IQ2_BN = (135, 64, 16, 4)
    IQ2_K = (137, 256, 76)
    IQ3_K = (138, 256, 110)
    IQ4_K = (139, 256, 144)
    IQ5_K = (140, 256, 176)
    IQ6_K = (141, 256, 212)
    IQ4_KS = (144, 256, 136, 4)
    IQ2_KS = (145, 256, 70, 2)
    IQ4_KSS = (146, 256, 128, 4)
    Q8_KV = (151, 32, 32, 8)
    IQ5_KS = (152, 256, 168, 4)
    IQ2_KT = (153, 256, 68, 4)
    IQ3_KT = (154, 256, 100, 4)
    IQ4_KT = (155, 256, 128, 4)
    IQ3_KS = (156, 256, 102, 2)
    IQ2_KL = (157, 256, 86, 2)
    IQ1_KT = (158, 256, 56, 4)

    Q4_0_R8 = (202, 32, 18, 0, 8)
    Q5_0_R4 = (206, 32, 22, 0, 4)
    Q8_0_R8 = (208, 32, 34, 0, 8)
    Q2_K_R4 = (210, 256, 84, 0, 4)
    Q3_K_R4 = (211, 256, 110, 0, 4)
    Q4_K_R4 = (212, 256, 144, 0, 4)
    Q5_K_R4 = (213, 256, 176, 0, 4)
    Q6_K_R4 = (214, 256, 210, 0, 4)
    IQ2_XXS_R4 = (216, 256, 66, 0, 4)
    IQ2_XS_R4 = (217, 256, 74, 0, 4)
    IQ3_XXS_R4 = (218, 256, 98, 0, 4)
    IQ1_S_R4 = (219, 32, 6, 2, 4)
    IQ4_NL_R4 = (220, 32, 18, 0, 4)
    IQ3_S_R4 = (221, 256, 110, 0, 4)
    IQ2_S_R4 = (222, 256, 82, 0, 4)
    IQ4_XS_R8 = (223, 256, 136, 0, 8)
    IQ1_M_R4 = (229, 32, 7, 2, 4)
    BF16_R16 = (230, 1, 2, 0, 16)
    Q6_0_R4 = (233, 32, 26, 0, 4)
    IQ2_BN_R4 = (335, 64, 16, 4, 4)
    IQ2_K_R4 = (337, 256, 76, 0, 4)
    IQ3_K_R4 = (338, 256, 110, 0, 4)
    IQ4_K_R4 = (339, 256, 144, 0, 4)
    IQ5_K_R4 = (340, 256, 176, 0, 4)
    IQ4_KS_R4 = (344, 256, 136, 4, 4)
    IQ5_KS_R4 = (352, 256, 168, 4, 4)
    MXFP4_R8 = (353, 32, 17, 0, 8)
    Q8_KV_R8 = (398, 32, 32, 4, 8)
    Q8_K_R8 = (399, 256, 258, 0, 8)

    @classmethod
    def of(cls, id: int) -> "GGMLType | None":
        """The type with this id, None if there is none."""
        member = cls._value2member_map_.get(id)
        return member if isinstance(member, cls) else None

    def row_bytes(self, n: int) -> int:
        """Bytes of a row of `n` weights; `n` is a multiple of `block`."""
        return self.row_meta + n // self.block * self.block_bytes

    def tensor_bytes(self, shape: tuple[int, ...]) -> int:
        """Bytes of a tensor whose row length is ``shape[0]``."""
        n_rows = 1
        for n in shape[1:]:
            n_rows *= n
        scale_of_tensor = 32 if self is GGMLType.I2_S else 0
        return n_rows * self.row_bytes(shape[0]) + scale_of_tensor


REMOVED_TYPES = {
    4: "Q4_2",
    5: "Q4_3",
    31: "Q4_0_4_4",
    32: "Q4_0_4_8",
    33: "Q4_0_8_8",
    37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
}

_QUANT_MIX = {"S": "Small", "M": "Medium", "L": "Large"}

FILE_TYPES = {
    0: "all F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    7: "Q8_0",
    8: "Q5_0",
    9: "Q5_1",
    10: "Q2_K - Medium",
    **{
        11 + i: f"Q{bits}_K - {_QUANT_MIX[mix]}"
        for i, (bits, mix) in enumerate(
            [(3, "S"), (3, "M"), (3, "L"), (4, "S"), (4, "M"), (5, "S"), (5, "M")]
        )
    },
    18: "Q6_K",
    19: "IQ2_XXS - 2.0625 bpw",
    20: "IQ2_XS - 2.3125 bpw",
    21: "Q2_K - Small",
    22: "IQ3_XS - 3.3 bpw",
    23: "IQ3_XXS - 3.0625 bpw",
    24: "IQ1_S - 1.5625 bpw",
    25: "IQ4_NL - 4.5 bpw",
    26: "IQ3_S - 3.4375 bpw",
    27: "IQ3_S mix - 3.66 bpw",
    28: "IQ2_S - 2.5 bpw",
    29: "IQ2_M - 2.7 bpw",
    30: "IQ4_XS - 4.25 bpw",
    31: "IQ1_M - 1.75 bpw",
    32: "BF16",
    36: "TQ1_0 - 1.69 bpw ternary",
    37: "TQ2_0 - 2.06 bpw ternary",
    38: "MXFP4 MoE",
    39: "NVFP4",
    40: "Q1_0",
}
"""llama.cpp's names of ``general.file_type``."""
