#pragma once

namespace ho {

/// Opens /dev/null on those of the descriptors 0 to 2 that are closed. Call it first in main().
///
/// Why: the system gives the lowest free number to the next file that is opened. A program that was
/// started without stderr would write its log lines into a file of its own, such as a flash path.
/// Reading from or writing to a stream that was closed still fails: stdin is opened for writing
/// only, stdout and stderr for reading only.
void open_standard_streams();

}  // namespace ho
