//go:build !unix

package main

import "errors"

const canFreeze = false

var errNoFreeze = errors.New("processes cannot be frozen on this system")

func (p *process) freeze() error { return errNoFreeze }

func (p *process) thaw() error { return errNoFreeze }
