"""The weight types that kernels exist for, by GGML name; `runtime.kernels.formats` has the kernels.

Apart from them: numba takes most of a second to import, and a tool that only looks at a file needs none.
"""

NAMES = (
    *("F32", "F16", "BF16"),
    *("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"),
    *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"),
    *("IQ4_NL", "IQ4_XS", "MXFP4"),
    *("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"),
    *("TQ1_0", "TQ2_0", "NVFP4", "Q1_0", "Q2_0"),
)
