/* Declarations that every file of the Ruby worker uses, and the interpreter's API. */
#ifndef KOMAINU_COMMON_H
#define KOMAINU_COMMON_H

#include <ruby.h>
#include <ruby/encoding.h>
#include <ruby/thread.h>

#include "komainu.h"
#include "komainu_life.h"

extern VALUE komainu_module;
/* Set in a process that the application has forked from a worker: seats and requests belong to its parent. */
extern int is_copy;

#endif
