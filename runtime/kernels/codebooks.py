"""Value tables of the types whose codes number a value."""

#: the 4-bit values of IQ4_NL and IQ4_XS
N16 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
#: FP4 (E2M1), doubled so that all are whole numbers
E2M1_DOUBLED = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
