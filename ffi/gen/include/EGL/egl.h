/* The EGL types that cudaEGL.h names. */
#pragma once
#include <stdint.h>
typedef int32_t EGLint;
