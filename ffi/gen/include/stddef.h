/* What the headers need of the compiler's own <stddef.h>, for LP64. Keeps the output independent of
 * the compiler that happens to be installed. */
#pragma once
typedef unsigned long size_t;
typedef long ptrdiff_t;
#ifndef NULL
#define NULL ((void *)0)
#endif
