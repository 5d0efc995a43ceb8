#pragma once

namespace pipewright {

// Has the process keep memory that it has freed. Tensors of some hundred kilobytes and more would
// otherwise go back to the system at once, and be paid for again, page by page, at the next
// microbatch. For a program to call first of all; a library leaves its caller's heap alone.
void KeepFreedMemory();

}  // namespace pipewright
