"""The longest that something may take in a test, as patience.hpp has it for C++."""
import os


def within(promised_s):
    """Other work on the machine keeps programs waiting, so by default only a hang is longer; with HO_REAL_TIME it is the
    promise itself. ho_script_test(... TIME) runs a script a second time, alone and with HO_REAL_TIME."""
    return promised_s if "HO_REAL_TIME" in os.environ else 20 * promised_s + 5
