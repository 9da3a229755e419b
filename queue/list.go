package queue

// A list is doubly linked through its claims, so that leaving from the middle
// costs nothing and a holder with no waiters costs no node.
type list struct {
	head, tail *Claim
	n          int
}

func (l *list) push(c *Claim) {
	c.prev, c.next = l.tail, nil
	if l.tail != nil {
		l.tail.next = c
	} else {
		l.head = c
	}
	l.tail = c
	l.n++
}

func (l *list) pushFront(c *Claim) {
	c.prev, c.next = nil, l.head
	if l.head != nil {
		l.head.prev = c
	} else {
		l.tail = c
	}
	l.head = c
	l.n++
}

func (l *list) remove(c *Claim) {
	if c.prev != nil {
		c.prev.next = c.next
	} else {
		l.head = c.next
	}
	if c.next != nil {
		c.next.prev = c.prev
	} else {
		l.tail = c.prev
	}
	c.prev, c.next = nil, nil
	l.n--
}

func (l *list) all(yield func(*Claim) bool) {
	for c := l.head; c != nil; {
		next := c.next // c may leave while it is looked at
		if !yield(c) {
			return
		}
		c = next
	}
}
