// Counts the inputs that pass a reader's first checks: the archive has a directory, the text is
// JSON. Each target documents where it counts.
#pragma once

inline long g_passed_first_checks = 0;
