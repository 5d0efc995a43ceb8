// What programs ask of the system about their memory, first of all. A library leaves its caller's
// process alone.
#pragma once

namespace pipewright {

// Has the process keep memory that it has freed. Tensors of some hundred kilobytes and more would
// otherwise go back to the system at once, and be paid for again, page by page, at the next
// microbatch.
void KeepFreedMemory();

// Lets go of the pages of LibTorch's code that are resident: before main it has registered all of
// its operators, of which a program uses few. What runs again is mapped again, at a fault each.
// Resident afterwards: about 45 MiB less. Nothing where somebody has written into that code.
void DropStartUpCode();

// The same of what reading, checking and loading have run, once a session is ready: 5 to 8 MiB.
// Does nothing in a process that did not ask for the former.
void DropLoadingCode();

}  // namespace pipewright
