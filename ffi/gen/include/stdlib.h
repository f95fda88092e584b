/* cuda.h includes it for size_t alone. */
#pragma once
#include <stddef.h>
