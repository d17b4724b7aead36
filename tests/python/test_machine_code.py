"""What tools/machine_code.py counts, in code as cuobjdump prints it."""

import sys

from encore_session import ROOT

sys.path.insert(0, str(ROOT / "tools"))
import machine_code  # noqa: E402

CODE = """
	code for sm_90
		Function : add
        /*0000*/                   LDC R1, c[0x0][0x28] ;                    /* 0x00000a00ff017b82 */
                                                                              /* 0x000fe20000000800 */
        /*0010*/                   LDG.E.128 R4, desc[UR4][R2.64] ;          /* 0x0000000402047981 */
        /*0020*/              @!P0 LDG.E.128 R8, desc[UR4][R12.64] ;         /* 0x000000040c088981 */
        /*0030*/                   FADD R5, R6, R9 ;                         /* 0x0000000906057221 */
        /*0040*/                   LDG.E.64 R20, desc[UR4][R22.64] ;         /* 0x0000000416147981 */
        /*0050*/                   CALL.REL.NOINC 0x90 ;                     /* 0x0000000000007944 */
        /*0060*/                   STG.E desc[UR4][R2.64], R21 ;             /* 0x0000001502007986 */
        /*0070*/                   EXIT ;                                    /* 0x000000000000794d */
		Function : nothing
        /*0000*/                   EXIT ;                                    /* 0x000000000000794d */
"""


def test_a_round_trip_ends_where_something_reads_what_a_load_brings():
    add, nothing = machine_code.kernels_of(CODE)
    assert add.trips == [2, 1]  # the sum reads of both of the first; the store reads the second half of the last
    assert add.count("CALL") == 1 and len(add.instructions) == 8
    assert nothing.trips == [] and nothing.row().split() == ["16", "0", "0", "0", "0", "nothing"]
