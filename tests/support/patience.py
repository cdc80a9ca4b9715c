"""The longest that something may take in a test, as patience.hpp has it for C++."""
import os


def in_real_time():
    """ho_script_test(... TIME) runs a script a second time, alone and with HO_REAL_TIME."""
    return "HO_REAL_TIME" in os.environ


def within(promised_s):
    """Other work on the machine keeps programs waiting, so by default only a hang is longer; in real time it is the promise
    itself."""
    return promised_s if in_real_time() else 20 * promised_s + 5
