"""The seconds of an update under methods with a server, or with one memory that all workers write."""

from __future__ import annotations

from paceline.planner.costs import Costs, Guess, single
from paceline.planner.estimate import Estimate, error_of
from paceline.planner.facts import Facts, answer_of, coding_of
from paceline.planner.prediction import Terms
from paceline.planner.queueing import queued
from paceline.planner.waiting import waiting
from paceline.plans.methods.server import CentreServer, GatheringServer, Hogwild, PairwiseGossip, ParameterServer
from paceline.plans.plan import Plan


def server(plan: Plan, method: ParameterServer, costs: Costs, facts: Facts) -> Estimate:
    workers = plan.workers
    c = costs.compute(facts.samples(1), workers, plan.threads)
    coding = coding_of(plan, facts)
    back = answer_of(plan, facts)
    moved = coding.bytes + back.bytes
    # The price of a push is that of as many bytes both ways.
    u, p = costs.update(workers, plan.threads), single(costs, "push", workers, moved / 2)
    # A server also reads what it answers, so that it knows what the worker has.
    p = Guess(p.seconds + coding.decode + back.encode + back.decode, p.error)
    c = Guess(c.seconds + coding.encode + back.decode, c.error)
    between = costs.between("push", workers)
    # More workers than cores take turns, but one that holds the lock has its core.
    turns = max(1.0, workers * plan.threads / costs.card.cores)
    rate, _ = queued(workers, c.seconds / turns + between, (u.seconds / turns + p.seconds) / method.shards)
    work = (c.seconds + u.seconds) / turns + between + p.seconds
    each = workers / min(rate, workers / turns / work)  # of one worker, from push to push
    wait = max(0.0, each - c.seconds - u.seconds - p.seconds - between)
    terms = Terms(c.seconds, u.seconds, p.seconds, wait, between).scaled(1 / workers)
    return Estimate(terms, error_of(c, u), error_of(p, Guess(between + wait, 0.3)), moved / workers, workers - 1.0)


def gathering(plan: Plan, method: GatheringServer, costs: Costs, facts: Facts) -> Estimate:
    needed, workers = method.gathers, plan.workers
    c = costs.compute(facts.samples(needed), workers, plan.threads)
    u, p = costs.update(workers, plan.threads), single(costs, "push", workers, facts.served)
    p = Guess(p.seconds * needed, p.error)
    between = costs.between("push", workers)
    wait = waiting(costs, plan, needed, c.seconds)
    terms = Terms(c.seconds, u.seconds, p.seconds, wait, between)
    return Estimate(
        terms, error_of(c, u), error_of(p, Guess(between + wait, 0.3)), 2.0 * facts.served * needed / workers
    )


def centre(plan: Plan, method: CentreServer, costs: Costs, facts: Facts) -> Estimate:
    workers, every = plan.workers, max(1, method.exchange.every)
    c = costs.compute(facts.samples(1), workers, plan.threads)
    u, p = costs.update(workers, plan.threads), single(costs, "push", workers, facts.served)
    between = costs.between("push", workers)
    think = (c.seconds + u.seconds + between) * every
    rate, wait = queued(workers, think, p.seconds)
    terms = Terms(c.seconds, u.seconds, p.seconds / every, wait / every, between)
    terms = terms.scaled(1 / rate / every / terms.whole)
    return Estimate(
        terms,
        error_of(c, u),
        error_of(p, Guess(between + wait / every, 0.3)),
        2.0 * facts.served / every / workers,
        workers - 1.0,
    )


def pairwise(plan: Plan, method: PairwiseGossip, costs: Costs, facts: Facts) -> Estimate:
    workers = plan.workers
    c = costs.compute(facts.samples(1), workers, plan.threads)
    u, p = costs.update(workers, plan.threads), single(costs, "push", workers, facts.served)
    between = costs.between("push", workers)
    terms = Terms(c.seconds, u.seconds, p.seconds, between=between).scaled(1 / workers)
    return Estimate(
        terms, error_of(c, u), error_of(p, Guess(between, 0.3)), 2.0 * facts.served / workers, workers - 1.0
    )


def hogwild(plan: Plan, method: Hogwild, costs: Costs, facts: Facts) -> Estimate:
    workers = plan.workers
    c, u = costs.compute(facts.samples(1), workers, plan.threads), costs.update(workers, plan.threads)
    p, between = single(costs, "push", workers, facts.served), costs.between("push", workers)
    terms = Terms(c.seconds, u.seconds, p.seconds, between=between).scaled(1 / workers)
    # Nothing is sent: all write into one memory.
    return Estimate(terms, error_of(c, u), error_of(p, Guess(between, 0.3)), 0.0, workers - 1.0)
