/* The EGL extension handles that cudaEGL.h names. */
#pragma once
typedef void *EGLImageKHR;
typedef void *EGLStreamKHR;
typedef void *EGLSyncKHR;
