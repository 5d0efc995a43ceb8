// Sets the memory options that programs apply to their process at start-up. A library leaves its
// caller's process alone.
#pragma once

namespace pipewright {

// Makes the process keep freed memory. Otherwise tensors of some hundred kilobytes and more would
// be returned to the system at once, and every microbatch would pay for their page faults again.
void KeepFreedMemory();

// Releases the resident pages of LibTorch's code: before main it registers all of its operators, of
// which a program uses few. Code that runs again is mapped again, at one page fault each. Saves
// about 45 MiB of resident memory. Does nothing if that code was modified in memory.
void DropStartUpCode();

// Does the same for code used only by reading, checking and loading, once a session is ready: 5 to
// 8 MiB. No-op unless DropStartUpCode() was called.
void DropLoadingCode();

}  // namespace pipewright
