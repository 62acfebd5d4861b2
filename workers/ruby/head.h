/*
 * Heads of responses. Fields point into Ruby's strings, which the garbage collector moves when it compacts. So nothing
 * runs or allocates in Ruby between head_fill and the write of the head.
 */
#ifndef KOMAINU_HEAD_H
#define KOMAINU_HEAD_H

#include "common.h"

/* Fields that need no allocation. */
#define FIELDS_INLINE 32

struct head {
    komainu_field fields[FIELDS_INLINE];
    komainu_field *at;
    size_t count, room;
    VALUE storage; /* holds the fields if there are many */
    VALUE hijack;  /* the value of rack.hijack */
    VALUE length;  /* the value of Content-Length */
    int odd;       /* not only strings: conversion is needed first */
};

void init_head(void);
/* Begins a head with an application's headers. Returns the object that keeps the fields' texts alive. */
VALUE head_fill(struct head *head, VALUE headers);
/* Adds a Content-Length, for which head_fill has left room; `digits` must outlive the head. */
void head_add_length(struct head *head, uint64_t len, char *digits, size_t size);

#endif
