// How many inputs came past a reader's first checks: the archive has a directory, the text is JSON.
// Each target says of its own where it counts.
#pragma once

inline long g_passed_first_checks = 0;
